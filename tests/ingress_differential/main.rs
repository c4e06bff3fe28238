//! `import` of Ingress objects beside nginx with the configuration of ingress-nginx.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod nginx_conf;
mod objects;

use serde_json::json;
use sluicegate_import::import_file;

use nginx_conf::write_conf;
use objects::{CANARIES, MAINS, Object, roll_objects};
use support::nginx::Nginx;
use support::{Dice, Scratch};

const FILES: u64 = 20;

/// nginx takes the configuration, and the import loses nothing.
#[test]
fn random_objects_are_taken_whole() {
    for seed in 0..FILES {
        let objects = roll_objects(&mut Dice(seed));
        let Some(mut conf) = write_conf(&objects) else { continue };
        for service in MAINS.into_iter().chain(CANARIES) {
            conf = conf.replace(&format!("@{service}@"), "127.0.0.1:9");
        }
        drop(Nginx::start_program("/usr/sbin/nginx".as_ref(), &conf, 1));
        let items: Vec<_> = objects.iter().map(Object::json).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let imported =
            import_file(&Scratch::new().file("objects.json", &list.to_string())).expect("an import");
        assert_eq!(imported.report.count_lost(), 0, "seed {seed}: {}", imported.report.render_text());
    }
}
