//! The text above the tables.

/// The build that the Makefile measures: the program as users build it.
const PLAIN: &str = "target/plain/release/sluicegate";

/// The programs, the machine and the command, so that the numbers can be judged and reproduced.
pub fn heading(make: &str, bench: &str, typed: &[String], tools: &[&[&str]]) -> String {
    let first_line = |argv: &[&str]| {
        let output = std::process::Command::new(argv[0]).args(&argv[1..]).output().ok()?;
        let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
        Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_owned())
    };
    let say = |argv: &[&str]| first_line(argv).unwrap_or_else(|| format!("{}: not found", argv[0]));
    let rustc: &[&str] = &["rustc", "--version"];
    let tools: Vec<String> = tools.iter().chain([&rustc]).map(|argv| version(&say(argv))).collect();
    let folder = env!("CARGO_MANIFEST_DIR");
    let dirty = first_line(&["git", "-C", folder, "status", "--porcelain", "--untracked-files=no"]).is_some();
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("")
        .trim_start_matches([' ', '\t', ':']);
    format!(
        "{}, commit {}{}, `{}`  \n{}; Linux {}; {cpu}\n",
        say(&["date", "-u", "+%Y-%m-%d %H:%M UTC"]),
        say(&["git", "-C", folder, "rev-parse", "--short", "HEAD"]),
        if dirty { " and uncommitted changes" } else { "" },
        command(make, bench, typed),
        tools.join("; "),
        say(&["uname", "-r"]).split('-').next().unwrap_or_default(),
    )
}

/// The version in a program's own output.
fn version(line: &str) -> String {
    [" Copyright", " sha="]
        .into_iter()
        .fold(line, |line, mark| line.split(mark).next().unwrap_or_default())
        .to_owned()
}

/// The command that repeats the run, without the path of another binary.
fn command(make: &str, bench: &str, typed: &[String]) -> String {
    match typed {
        [flag, gateway] if flag == "--gateway" && gateway == PLAIN => format!("make {make}"),
        [flag, gateway, words @ ..] if flag == "--gateway" && gateway == PLAIN => {
            format!("make {make} OPTIONS=\"{}\"", words.join(" "))
        }
        words => {
            let mut command = format!("cargo bench --bench {bench} --");
            let mut private = false;
            for word in words {
                command = command + " " + if private { "…" } else { word };
                private = word == "--gateway" || word == "--dist";
            }
            command
        }
    }
}
