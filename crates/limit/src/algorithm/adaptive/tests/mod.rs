//! The adaptive limit in simulations of a backend that is overloaded, becomes slow, fails or recovers.

mod contest;
mod rivals;
mod simulation;

use simulation::{MS, SECOND, Simulation};

const BACKENDS: [(usize, u64); 8] = [
    (2, 20 * MS),
    (4, 200 * MS),
    (10, 5 * MS),
    (10, 100 * MS),
    (50, 50 * MS),
    (100, 10 * MS),
    (100, 500 * MS),
    (400, 30 * MS),
];

#[test]
fn under_four_times_its_load_a_backend_is_kept_busy_and_quick() {
    for varies in [false, true] {
        for (workers, service) in BACKENDS {
            let mut scene = Simulation { varies, ..Simulation::new(1, 1000, workers, service, 4) };
            scene.run_for(20 * SECOND + 50 * service);
            let seen = scene.run_for(60 * SECOND);
            scene.assert_settled(&seen, 60 * SECOND);
        }
    }
}

/// With fewer workers the limit shrinks within three seconds, and it grows back with them.
#[test]
fn the_limit_follows_a_backend_that_loses_two_thirds_of_its_workers() {
    for varies in [false, true] {
        for (workers, service) in [(30, 20 * MS), (90, 10 * MS), (90, 100 * MS)] {
            let mut scene = Simulation { varies, ..Simulation::new(1, 1000, workers, service, 4) };
            scene.run_for(30 * SECOND);
            scene.workers = workers / 3;
            scene.run_for(3 * SECOND);
            assert!(
                scene.limit.allowed_slots() <= workers as u64,
                "{} after three seconds",
                scene.limit.allowed_slots()
            );
            let seen = scene.run_for(30 * SECOND);
            scene.assert_settled(&seen, 30 * SECOND);
            scene.workers = workers;
            scene.run_for(15 * SECOND);
            let seen = scene.run_for(30 * SECOND);
            scene.assert_settled(&seen, 30 * SECOND);
        }
    }
}

/// A slower backend with as many workers bears as many requests: the limit dips until the new minimum is measured.
#[test]
fn the_limit_recovers_on_a_backend_that_takes_three_times_as_long() {
    for varies in [false, true] {
        for (workers, service) in [(30, 20 * MS), (90, 10 * MS), (90, 100 * MS)] {
            let mut scene = Simulation { varies, ..Simulation::new(1, 1000, workers, service, 4) };
            scene.run_for(30 * SECOND);
            scene.service = 3 * service;
            scene.run_for(2 * SECOND);
            scene.run_for(15 * SECOND);
            let seen = scene.run_for(30 * SECOND);
            scene.assert_settled(&seen, 30 * SECOND);
            scene.service = service;
            scene.run_for(15 * SECOND);
            let seen = scene.run_for(30 * SECOND);
            scene.assert_settled(&seen, 30 * SECOND);
        }
    }
}

#[test]
fn an_outage_shrinks_the_limit_to_its_floor_and_has_no_lasting_effect() {
    let mut scene = Simulation::new(3, 1000, 50, 20 * MS, 4);
    scene.run_for(30 * SECOND);
    scene.is_down = true;
    scene.run_for(3 * SECOND);
    assert!(scene.limit.allowed_slots() <= 4, "{}", scene.limit.allowed_slots());
    scene.run_for(300 * SECOND);
    scene.is_down = false;
    scene.run_for(6 * SECOND);
    let seen = scene.run_for(30 * SECOND);
    scene.assert_settled(&seen, 30 * SECOND);
}

#[test]
fn a_limit_that_is_not_used_does_not_grow_and_rejects_nothing() {
    let mut scene = Simulation { varies: true, ..Simulation::new(1, 1000, 100, 50 * MS, 4) };
    // Five in flight on average.
    scene.offered = 100;
    let seen = scene.run_for(600 * SECOND);
    assert_eq!(seen.rejected, 0, "{seen:?}");
    assert!(seen.limit_max <= 40, "{seen:?}");
}

/// Below the load that the backend bears nothing is rejected, not even for a measurement.
#[test]
fn a_busy_backend_that_is_not_overloaded_is_left_alone() {
    let mut scene = Simulation { varies: true, ..Simulation::new(1, 1000, 100, 50 * MS, 4) };
    scene.offered = 1_600;
    scene.run_for(20 * SECOND);
    let seen = scene.run_for(600 * SECOND);
    let all = seen.answered + seen.rejected;
    assert!(seen.rejected * 1000 < all, "{} of {all}, {seen:?}", seen.rejected);
}

#[test]
fn the_bounds_hold() {
    let mut scene = Simulation::new(30, 40, 10, 20 * MS, 8);
    let seen = scene.run_for(60 * SECOND);
    assert_eq!((seen.limit_min >= 30, seen.limit_max <= 40), (true, true), "{seen:?}");
    let mut scene = Simulation::new(5, 40, 100, 20 * MS, 8);
    scene.run_for(20 * SECOND);
    assert_eq!(scene.limit.allowed_slots(), 40);
}

/// Clients that give up count, too: without answers the limit shrinks, and it recovers with them.
#[test]
fn a_backend_too_slow_for_its_clients_gets_less_until_it_answers_again() {
    let mut scene = Simulation { client_timeout: 500 * MS, ..Simulation::new(4, 1000, 400, 20 * MS, 1) };
    scene.schedule_clients(200);
    scene.run_for(10 * SECOND);
    let grown = scene.limit.allowed_slots();
    assert!(grown >= 200, "{grown}");
    scene.service = SECOND;
    scene.run_for(10 * SECOND);
    let seen = scene.run_for(30 * SECOND);
    assert!(seen.limit_max <= 8 && seen.answered == 0 && seen.left <= 30 * 20, "{seen:?}");
    scene.service = 20 * MS;
    scene.run_for(15 * SECOND);
    let seen = scene.run_for(10 * SECOND);
    assert!(seen.limit_min >= 150 && seen.left == 0, "{seen:?}");
}

/// A queue longer than any client waits shrinks until clients get answers again.
#[test]
fn clients_that_leave_a_queue_do_not_keep_it_long() {
    let mut scene = Simulation { client_timeout: 500 * MS, ..Simulation::new(1, 1000, 60, 20 * MS, 1) };
    scene.schedule_clients(200);
    scene.run_for(30 * SECOND);
    scene.workers = 5;
    scene.run_for(30 * SECOND);
    let seen = scene.run_for(30 * SECOND);
    assert!(seen.left == 0 && seen.limit_max <= 20, "{seen:?}");
    assert!(scene.throughput(&seen, 30 * SECOND) >= 85, "{seen:?}");
}

/// A client that leaves quickly, or before the minimum is known, is no evidence.
#[test]
fn impatient_clients_of_a_quick_backend_are_no_sign() {
    let mut scene = Simulation { varies: true, ..Simulation::new(1, 1000, 400, 20 * MS, 1) };
    scene.schedule_clients(100);
    scene.run_for(30 * SECOND);
    let grown = scene.limit.allowed_slots();
    scene.client_timeout = 25 * MS;
    let seen = scene.run_for(60 * SECOND);
    assert!(seen.left > seen.answered / 10 && seen.rejected == 0 && seen.limit_min >= grown, "{seen:?}");
}

/// Sixty sequential clients never use half of a limit of 126, and yet overload a backend with five workers left.
#[test]
fn a_limit_that_was_not_used_binds_where_the_backend_becomes_slow() {
    for before in [126, 300] {
        let mut scene = Simulation::new(1, 1000, 400, 20 * MS, 1);
        scene.schedule_clients(before);
        scene.run_for(10 * SECOND);
        scene.schedule_clients(60);
        scene.run_for(10 * SECOND);
        assert!(scene.limit.allowed_slots() >= 64, "{}", scene.limit.allowed_slots());
        scene.workers = 5;
        scene.run_for(5 * SECOND);
        assert!(scene.limit.allowed_slots() <= 20, "{} after five seconds", scene.limit.allowed_slots());
        scene.run_for(10 * SECOND);
        let seen = scene.run_for(30 * SECOND);
        scene.assert_settled(&seen, 30 * SECOND);
        scene.workers = 400;
        scene.run_for(15 * SECOND);
        let seen = scene.run_for(30 * SECOND);
        assert_eq!(seen.rejected, 0, "{seen:?}");
    }
}

/// At low load a slow endpoint beside a quick one is no overload.
#[test]
fn few_requests_are_never_rejected_however_different_they_are() {
    for varies in [false, true] {
        for (before, clients) in [(0, 4), (4, 4), (60, 4), (60, 9)] {
            let mut scene = Simulation { varies, ..Simulation::new(1, 1000, 400, 5 * MS, 1) };
            scene.schedule_clients(before);
            scene.run_for(10 * SECOND);
            scene.schedule_clients(clients);
            scene.run_for(SECOND);
            scene.other = Some(300 * MS);
            let seen = scene.run_for(100 * SECOND);
            assert_eq!(seen.rejected, 0, "{before} {clients} {seen:?}");
            scene.other = None;
            scene.client_timeout = 30 * MS;
            scene.service = 300 * MS;
            let seen = scene.run_for(60 * SECOND);
            assert_eq!(seen.rejected, 0, "{before} {clients} {seen:?}");
        }
    }
}
