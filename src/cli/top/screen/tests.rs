//! The screen on terminals of many sizes.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use serde_json::{Value, json};

use super::*;
use crate::cli::top::keyboard::TopTask;
use crate::cli::top::tables::render_text;

fn limit(name: &str, rejected: f64) -> Value {
    let rate = |per_s: f64| json!({ "total": 5, "per_s": per_s, "per_s_1m": 0.0 });
    json!({ "limit": name, "keys": 7, "waiting": 2, "admitted": rate(1096.5), "waited": rate(0.0),
            "rejected": rate(rejected) })
}

fn key(name: &str) -> Value {
    json!({ "key": name, "asked_per_s": 42.0, "refused_per_s": 32.1, "error_per_s": 0.0, "remaining": 0,
            "leased": null, "reset_s": 0.1,
            "step": "slow", "waiting": null, "grant": null, "ban": name.strip_prefix("ip=") })
}

fn answers(limits: &[Value], keys: &Value) -> Value {
    let server = |name: &str, state: &str| {
        json!({ "server": name, "state": state, "weight": 1, "share": 100, "backup": false, "in_flight": 3,
                "ejections": 1, "responses": { "5xx": 9 }, "last_error": { "error": "timeout", "seconds_ago": 1.5 } })
    };
    json!({
        "status": { "version": "1.2.3", "uptime_s": 3700, "connections": 1117, "in_flight": 9,
            "rejections": { "per_s": 4.5, "over_s": 10.0 }, "bans": { "active": 2 },
            "upstreams": [
                { "upstream": "app", "servers": [server("10.0.0.7:80", "up"), server("10.0.0.8:80", "down")] },
                { "upstream": "old", "servers": [server("10.0.0.8:80", "draining")] },
            ] },
        "limits": limits, "keys": keys, "bans": [],
        "upstreams": [{ "upstream": "app", "in_flight": 6, "response": { "p50_ms": 3.2, "p99_ms": 120.0 },
                        "responses": { "2xx": 90.0, "5xx": 12.5 } }],
    })
}

fn read_answers(answers: Value) -> GatewayReading {
    let name = answers.pointer("/limits/0/limit").and_then(Value::as_str).map(str::to_owned);
    GatewayReading::parse_answers(answers, name).unwrap_or_else(|_| panic!("the answers are well-formed"))
}

fn read(limits: &[Value], keys: &Value) -> GatewayReading {
    read_answers(answers(limits, keys))
}

fn sample() -> TopScreen {
    let keys = json!({ "keys": [key("ip=192.0.2.7"), key("uri=\u{1b}[2J\r\nx")] });
    TopScreen::new(read(&[limit("per-ip", 4.0), limit("login", 0.0)], &keys), true)
}

/// The lines of a screen of this size.
fn draw(screen: &mut TopScreen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn press(screen: &mut TopScreen, keys: &str) -> Option<TopTask> {
    let mut last = None;
    for letter in keys.chars() {
        let code = match letter {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            'v' => KeyCode::Down,
            '^' => KeyCode::Up,
            other => KeyCode::Char(other),
        };
        last = screen.press_key(KeyEvent::from(code));
    }
    last
}

/// The names in the first column of a table.
fn names(screen: &TopScreen, table: usize) -> Vec<String> {
    screen.list_rows(table).iter().map(|row| row.cells[0].clone()).collect()
}

#[test]
fn all_fits_on_80_columns() {
    let lines = draw(&mut sample(), 80, 24);
    assert_eq!(lines[0], "rejections 4.5/s  in flight 9  connections 1,117  bans 2  up 1h 1m 40s");
    let text = lines.join("\n");
    for row in [
        "limits\nlimit                            rejected/s  admitted/s  waited/s  waiting  keys\nper-ip   ",
        "keys of per-ip\nkey ",
        "ip=192.0.2.7            32.1       42.0     0     -       -        -        slow",
        "uri=\\u{1b}[2J\\r\\nx",
        "\nserver                    state      5xx/s  p50 ms  p99 ms  in flight  ejections\n\
         app                       1 of 2 up  12.5   3.2     120.0   6          -\n  10.0.0.8:80             down  ",
    ] {
        assert!(text.contains(row), "{row}:\n{text}");
    }
    assert_eq!(lines[23], "enter goes to the keys  q quits, / searches, tab next table, < > R sort");
}

#[test]
fn a_narrow_screen_leaves_out_columns() {
    let lines = draw(&mut sample(), 40, 10);
    let text = lines.join("\n");
    assert_eq!(lines[0], "rejections 4.5/s  in flight 9");
    let limits = "\nlimit             rejected/s  admitted/s\nper-ip            4.0         1,096.5\n";
    assert!(text.contains(limits), "{text}");
    assert!(text.contains("\nip=192.0.2.7") && !text.contains("upstreams"), "{text}");
}

#[test]
fn no_size_is_too_small() {
    let mut screen = sample();
    for width in [0, 1, 2, 5, 16, 17, 40, 300] {
        for height in [0, 1, 2, 3, 5, 8, 10, 60] {
            draw(&mut screen, width, height);
        }
    }
    screen.update(Ok(read(&[], &json!({ "keys": [] }))));
    assert!(draw(&mut screen, 80, 24).join("\n").contains("\nno limits\n"));
    assert!(press(&mut screen, "v\tv").is_none());
}

#[test]
fn the_arrow_keys_choose_a_limit() {
    let mut screen = sample();
    let row = |screen: &TopScreen| screen.chosen_row(LIMITS, &screen.list_rows(LIMITS));
    assert_eq!((screen.chosen[LIMITS].clone(), row(&screen)), (None, Some(0)));
    for (key, expected) in [("v", "login"), ("v", "login"), ("^", "per-ip"), ("^", "per-ip"), ("v", "login")]
    {
        match press(&mut screen, key) {
            Some(TopTask::Choose(limit)) => assert_eq!(limit, expected),
            _ => panic!("{key} chooses {expected}"),
        }
    }
    // The limit is gone after a reload.
    screen.update(Ok(read(&[limit("other", 0.0)], &json!({ "keys": [] }))));
    assert_eq!(row(&screen), None);
    assert!(draw(&mut screen, 80, 24).join("\n").contains("no key of other was refused lately"));
    press(&mut screen, "v");
    assert_eq!(row(&screen), Some(0));
}

#[test]
fn rows_without_room_are_counted() {
    let limits: Vec<Value> = (0..30).map(|n| limit(&format!("limit-{n:02}"), 0.0)).collect();
    let mut screen = TopScreen::new(read(&limits, &json!({ "keys": [] })), true);
    let text = draw(&mut screen, 80, 24).join("\n");
    let shown = text.matches("\nlimit-").count();
    assert!(shown > 2 && text.contains(&format!("\n{} more below\n", 30 - shown)), "{text}");
    for _ in 0..29 {
        press(&mut screen, "v");
    }
    let text = draw(&mut screen, 80, 24).join("\n");
    assert!(text.contains("\nlimit-29") && !text.contains("more below"), "{text}");
    // A table that just fits has no such line.
    let few = TopScreen::new(read(&limits[..shown + 1], &json!({ "keys": [] })), true).reading;
    screen.update(Ok(few));
    let text = draw(&mut screen, 80, 24).join("\n");
    assert_eq!(text.matches("\nlimit-").count(), shown + 1, "{text}");
}

#[test]
fn a_search_hides_what_does_not_match() {
    let mut screen = sample();
    press(&mut screen, "/LOG");
    assert_eq!(names(&screen, LIMITS), ["login"]);
    assert!(draw(&mut screen, 80, 24)[23].starts_with("/log_"));
    press(&mut screen, "\u{8}\u{8}\u{8}0.8:\n");
    assert_eq!(names(&screen, SERVERS), ["app", "  10.0.0.8:80", "  10.0.0.7:80", "old", "  10.0.0.8:80"]);
    assert!(draw(&mut screen, 80, 24)[23].starts_with("/0.8: enter goes"));
    press(&mut screen, "/\u{1b}");
    assert_eq!(names(&screen, LIMITS), ["per-ip", "login"]);
}

#[test]
fn columns_sort_both_ways() {
    let mut screen = sample();
    press(&mut screen, ">");
    assert_eq!(names(&screen, LIMITS), ["login", "per-ip"]);
    assert!(draw(&mut screen, 80, 24).join("\n").contains("\nlimit \u{25bc} "));
    press(&mut screen, "R");
    assert_eq!(names(&screen, LIMITS), ["per-ip", "login"]);
    press(&mut screen, "R>");
    assert_eq!(names(&screen, LIMITS), ["per-ip", "login"], "more rejections come first");
    press(&mut screen, "R");
    assert_eq!(names(&screen, LIMITS), ["login", "per-ip"]);
    // A server stays below its upstream.
    press(&mut screen, "\t\t>R");
    assert_eq!(names(&screen, SERVERS), ["old", "  10.0.0.8:80", "app", "  10.0.0.8:80", "  10.0.0.7:80"]);
}

/// An action is asked for, then confirmed, and any key but `y` stops it.
#[test]
fn actions_are_confirmed() {
    #[track_caller]
    fn assert_asked(screen: &mut TopScreen, keys: &str, question: &str) {
        assert!(press(screen, keys).is_none());
        assert_eq!(draw(screen, 90, 24)[23], format!("{question}? y: yes, any other key: no"));
        assert!(matches!(press(screen, "y"), Some(TopTask::Act(_))));
        press(screen, &keys[keys.len() - 1..]);
        assert!(press(screen, "q").is_none(), "stopped");
    }
    let mut screen = sample();
    assert_asked(&mut screen, "\nb", "ban 192.0.2.7 for 10 minutes");
    assert_asked(&mut screen, "u", "end the ban of 192.0.2.7");
    assert_asked(&mut screen, "r", "forget what ip=192.0.2.7 of per-ip has used");
    press(&mut screen, "vb");
    assert!(!draw(&mut screen, 90, 24)[23].contains('?'), "a path cannot be banned");
    assert_asked(&mut screen, "\tvd", "drain 10.0.0.8:80 of app");
    assert_asked(&mut screen, "vvvd", "end the drain of 10.0.0.8:80 of old");
    let mut with_ban = answers(&[limit("per-ip", 4.0)], &json!({ "keys": [] }));
    with_ban["bans"] = json!([{ "banned": "account=joe", "by": "ops", "reason": null, "left_s": 540.25 }]);
    screen.update(Ok(read_answers(with_ban)));
    assert_asked(&mut screen, "\tu", "end the ban of account=joe");
    let text = draw(&mut screen, 90, 30).join("\n");
    assert!(text.contains("\nbans\nbanned ") && text.contains("  540.3   ops  -"), "{text}");
    assert!(matches!(press(&mut screen, "\u{1b}\u{1b}"), Some(TopTask::Quit)));
}

#[test]
fn a_gateway_without_an_answer_keeps_its_numbers() {
    let mut screen = sample();
    screen.update(Err(AdminFault::Unreachable("refused\u{7}".to_owned())));
    let lines = draw(&mut screen, 80, 24);
    assert_eq!(lines[1], "no answer for 0 s: refused\\u{7}");
    assert!(lines.join("\n").contains("192.0.2.7"));
    screen.update(Ok(read(&[limit("per-ip", 0.0)], &json!({ "error": "names are not kept" }))));
    screen.outcome = Some("192.0.2.7 is banned".to_owned());
    let lines = draw(&mut screen, 80, 24);
    assert_eq!(lines[1], "192.0.2.7 is banned");
    assert!(lines.join("\n").contains("\nnames are not kept\n"));
}

#[test]
fn colours_can_be_left_out() {
    let colors = |colors: bool| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let mut screen = sample();
        screen.colors = colors;
        screen.update(Err(AdminFault::Unreachable("refused".to_owned())));
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content().iter();
        cells.filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert!(colors(true) > 0);
    assert_eq!(colors(false), 0);
}

#[test]
fn a_queue_in_front_of_servers_is_shown() {
    let mut with_queue = answers(&[], &json!({ "keys": [] }));
    with_queue["status"]["upstreams"][0]["queue"] = json!({ "size": 1000, "waiting": 3 });
    let mut screen = TopScreen::new(read_answers(with_queue), true);
    assert!(draw(&mut screen, 100, 24).join("\n").contains("  1 of 2 up, 3 of 1000 wait  12.5 "));
    assert!(render_text(&screen.reading).contains("  1 of 2 up, 3 of 1000 wait  12.5 "));
}

#[test]
fn leased_units_are_shown_with_their_place() {
    let mut leased = key("global");
    (leased["remaining"], leased["leased"]) = (json!(1249), json!({ "here": 37, "store": 1212 }));
    let mut screen = TopScreen::new(read(&[limit("all", 4.0)], &json!({ "keys": [leased] })), true);
    let cells = "  1,249  37 here, 1,212 in the store";
    assert!(draw(&mut screen, 80, 24).join("\n").contains(cells));
    assert!(render_text(&screen.reading).contains(cells));
}

#[test]
fn plain_text_has_the_same_tables() {
    let text = render_text(&sample().reading);
    let expected = "rejections 4.5/s  in flight 9  connections 1,117  bans 2  up 1h 1m 40s  sluicegate 1.2.3\n\n\
        limit   rejected/s  admitted/s  waited/s  waiting  keys\n\
        per-ip  4.0         1,096.5     0.0       2        7\n\
        login   0.0         1,096.5     0.0       2        7\n\n\
        keys of per-ip\n\
        key                 refused/s  asked/s  left  leased  waiting  granted  step\n\
        ip=192.0.2.7        32.1       42.0     0     -       -        -        slow\n\
        uri=\\u{1b}[2J\\r\\nx  32.1       42.0     0     -       -        -        slow\n\n\
        server         state      5xx/s  p50 ms  p99 ms  in flight  ejections  last error\n\
        app            1 of 2 up  12.5   3.2     120.0   6          -          -\n  \
          10.0.0.8:80  down       -      -       -       3          1          timeout\n  \
          10.0.0.7:80  up         -      -       -       3          1          timeout\n\
        old            0 of 1 up  -      -       -       -          -          -\n  \
          10.0.0.8:80  draining   -      -       -       3          1          timeout\n";
    assert_eq!(text, expected);
}
