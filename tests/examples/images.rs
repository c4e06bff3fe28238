//! The image and the compose file, which no test here can run: checks of their text.

use serde_yaml::Value;

use super::{root, text};

/// A stage of the Dockerfile: its base image and its lines.
struct Stage {
    from: String,
    name: String,
    body: String,
}

fn stages() -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    for line in text("Dockerfile").replace("\\\n", " ").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["FROM", from, "AS", name] => {
                stages.push(Stage { from: from.to_owned(), name: name.to_owned(), body: String::new() });
            }
            _ => {
                if let Some(stage) = stages.last_mut() {
                    stage.body += &(words.join(" ") + "\n");
                }
            }
        }
    }
    stages
}

fn stage(name: &str) -> Stage {
    stages().into_iter().find(|stage| stage.name == name).unwrap_or_else(|| panic!("no stage {name}"))
}

/// The services with the fields merged from `<<`.
fn services() -> Vec<(String, Value)> {
    let mut compose: Value = serde_yaml::from_str(&text("docker-compose.yml")).expect("YAML");
    // Twice: a merged mapping has a merge of its own.
    for _ in 0..2 {
        compose.apply_merge().expect("`<<` stands before mappings");
    }
    let services = compose["services"].as_mapping().expect("services").clone();
    let named = |(name, service): (Value, Value)| (name.as_str().expect("a name").to_owned(), service);
    services.into_iter().map(named).collect()
}

/// The services that run the gateway's program, each with its file.
fn programs() -> Vec<(String, Value, String)> {
    let programs = services().into_iter().filter_map(|(name, service)| {
        if service["image"] != "sluicegate:local" {
            return None;
        }
        let file = service["volumes"][0].as_str().expect("a mounted file");
        let file = file.strip_suffix(":/etc/sluicegate/gateway.yaml:ro").expect("the gateway's file");
        let file = file.strip_prefix("./").expect("a file of ours").to_owned();
        Some((name, service, file))
    });
    programs.collect()
}

/// Whether a tag names one release: at least two numbers, such as 12.13-slim.
fn is_pinned(image: &str) -> bool {
    let Some((_, tag)) = image.split_once(':') else { return false };
    let version = tag.split('-').next().unwrap_or_default();
    let numbers: Vec<&str> = version.split('.').collect();
    numbers.len() >= 2 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
}

#[test]
fn every_foreign_image_is_pinned() {
    let of_stages = stages().into_iter().map(|stage| stage.from);
    let of_services =
        services().into_iter().map(|(_, service)| service["image"].as_str().expect("an image").to_owned());
    let is_foreign = |image: &String| !image.starts_with("sluicegate") && image != "scratch";
    let foreign: Vec<String> = of_stages.chain(of_services).filter(is_foreign).collect();
    assert!(foreign.len() >= 4, "{foreign:?}");
    for image in foreign {
        assert!(is_pinned(&image), "{image}");
    }
    for image in ["debian", "debian:latest", "debian:bookworm-slim", "redis:7-alpine", "rust:1-bookworm"] {
        assert!(!is_pinned(image), "{image}");
    }
}

/// Docker rejects several services that build one tag at the same time.
#[test]
fn each_tag_is_built_by_one_service() {
    let services = services();
    let built = services.iter().filter(|(_, service)| !service["build"].is_null());
    let mut tags: Vec<&str> = built.map(|(_, service)| service["image"].as_str().expect("a tag")).collect();
    tags.sort_unstable();
    assert_eq!(tags, ["sluicegate-load:local", "sluicegate:local"]);
    for (name, service, _) in programs() {
        let expected = if service["build"].is_null() { "never" } else { "build" };
        assert_eq!(service["pull_policy"], expected, "{name}: it is in no registry");
    }
}

#[test]
fn the_image_has_certificates_a_health_check_and_a_stripped_program() {
    let gateway = stage("gateway");
    assert!(gateway.body.contains("install -y --no-install-recommends ca-certificates"), "{}", gateway.body);
    assert!(gateway.body.contains("USER 65532:65532"), "{}", gateway.body);
    let check = gateway.body.lines().find(|line| line.starts_with("HEALTHCHECK ")).expect("a health check");
    let command = check.split("CMD ").nth(1).expect("a command");
    let words: Vec<String> = serde_json::from_str(command).expect("words");
    let serves = gateway.body.lines().find_map(|line| line.strip_prefix("CMD ")).expect("a command");
    let serves: Vec<String> = serde_json::from_str(serves).expect("words");
    assert_eq!(words[..2], ["sluicegate", "status"], "the image has no curl");
    assert_eq!(words[2..], serves[1..], "it asks by the file that is served");
    assert!(
        stage("builder")
            .body
            .contains("&& objcopy --strip-all --add-gnu-debuglink=sluicegate.debug sluicegate")
    );
    assert!(stage("debug").body.contains("COPY --from=builder /build/target/release/sluicegate.debug"));
}

/// A change of the sources compiles no dependency again: those are built before the sources are copied, by the same
/// command, and the empty program is never taken for ours.
#[test]
fn the_image_caches_the_dependencies() {
    let builder = stage("builder").body;
    let lines: Vec<&str> = builder.lines().collect();
    let at = |start: &str| lines.iter().position(|line| line.starts_with(start)).expect(start);
    let (manifest, sources) = (at("COPY Cargo.toml Cargo.lock ./"), at("COPY src src"));
    let copies = lines.iter().filter(|line| line.starts_with("COPY ") || line.starts_with("ADD ")).count();
    let crates: Vec<String> = std::fs::read_dir(root().join("crates"))
        .expect("the crates")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    for name in &crates {
        assert!(at(&format!("COPY crates/{name}/Cargo.toml crates/{name}/")) < sources, "{builder}");
    }
    assert!(manifest < sources && copies == 5 + crates.len(), "{builder}");
    // It decides how jemalloc is built.
    assert!(
        root().join(".cargo/config.toml").is_file() && at("COPY .cargo .cargo") < manifest + 2,
        "{builder}"
    );
    let build = |from: usize, to: usize| {
        let mut steps = lines[from..to].iter().flat_map(|line| line.split("&&")).map(str::trim);
        steps.find(|step| step.contains("cargo build")).expect("a build").replace("RUN ", "")
    };
    assert_eq!(build(manifest, sources), build(sources, lines.len()));
    let dependencies = lines[manifest..sources].join(" ");
    for file in ["src/main.rs", "src/lib.rs"] {
        assert!(dependencies.contains(file), "{file}: {builder}");
    }
    assert_eq!(lines[sources + 1..sources + 3], ["COPY crates crates", "COPY gateway.yaml ./"]);
    assert!(
        lines[sources + 3].starts_with("RUN touch src/main.rs src/lib.rs crates/*/src/lib.rs && cargo build"),
        "{builder}"
    );
    // No other file decides how they are built; the image has a toolchain of its own.
    assert!(!root().join("build.rs").exists() && !builder.contains("rust-toolchain"));
    // The manifest without its benchmarks names no file that is missing in that layer.
    let manifest = text("Cargo.toml");
    let targets = manifest.lines().filter(|line| line.starts_with("[[") || line.starts_with("build ="));
    assert!(targets.clone().count() > 0 && targets.into_iter().all(|line| line == "[[bench]]"));
}

#[test]
fn a_stopped_gateway_has_the_time_to_finish() {
    let programs = programs();
    assert_eq!(programs.len(), 9);
    for (name, service, file) in programs {
        let loaded = sluicegate_config::load(&root().join(&file)).unwrap_or_else(|report| panic!("{report}"));
        let grace = service["stop_grace_period"].as_str().and_then(|text| text.strip_suffix('s'));
        let grace: u64 = grace.expect("seconds").parse().expect("seconds");
        let shutdown = loaded.config.server.timeouts.shutdown.as_secs();
        assert!(grace > shutdown, "{name}: {grace} s for {shutdown} s");
    }
}

/// The gateways' metrics can be read from this host, with a token; those of other services are not published.
#[test]
fn metrics_are_reachable() {
    for (name, service, file) in programs() {
        let loaded = sluicegate_config::load(&root().join(&file)).unwrap_or_else(|report| panic!("{report}"));
        let admin = loaded.config.admin.expect("an admin listener");
        let ports = service["ports"].as_sequence().cloned().unwrap_or_default();
        let published = ports.iter().filter_map(Value::as_str).find(|port| port.ends_with(":9901"));
        if !name.starts_with("gateway") {
            assert!(published.is_none() && admin.listen.ip().is_loopback(), "{name}");
            continue;
        }
        assert!(published.is_some_and(|port| port.starts_with("127.0.0.1:")), "{name}: {ports:?}");
        assert!(admin.listen.ip().is_unspecified() && admin.listen.port() == 9901, "{name}");
        assert!(!admin.tokens.is_empty() && service["environment"]["ADMIN_TOKEN"].is_string(), "{name}");
    }
}

/// A service that depends on another starts after that one is healthy, or has done its work.
#[test]
fn services_wait_for_health() {
    for (name, service) in services() {
        let waits = service["depends_on"].as_mapping().cloned().unwrap_or_default();
        assert!(service["depends_on"].is_null() || !waits.is_empty(), "{name} waits for no health");
        for (other, how) in waits {
            let ends = other.as_str().is_some_and(|other| other.starts_with("delay-"));
            let expected = if ends { "service_completed_successfully" } else { "service_healthy" };
            assert_eq!(how["condition"], expected, "{name} waits for {other:?}");
        }
        // The program's own check is in its image.
        let has_check = service["image"] == "sluicegate:local" || !service["healthcheck"]["test"].is_null();
        assert!(has_check || name == "load", "{name}");
    }
}
