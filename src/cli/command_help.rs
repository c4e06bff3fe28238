//! The examples and exit codes that the help and the manual pages of every command end with.

use std::fmt::Write as _;

use clap::{Command, CommandFactory};

use super::args::CommandLine;

/// The meanings of the exit codes, part of the documented contract.
const EXIT_CODES: [&str; 6] = [
    "fine",
    "failed while running",
    "wrong command line",
    "the file is invalid",
    "cannot listen",
    "the admin listener cannot be reached",
];

/// One example and its purpose.
pub(super) type CommandExample = (&'static str, &'static str);

/// The examples and the exit codes of a command.
pub(super) struct CommandHelp {
    command: &'static str,
    pub examples: &'static [CommandExample],
    codes: &'static [usize],
}

/// The exit codes of the commands that ask the admin listener.
const ADMIN_CODES: &[usize] = &[0, 1, 2, 3, 5];

/// The program itself comes first.
const ALL: [CommandHelp; 31] = [
    CommandHelp::of("sluicegate", &[0, 1, 2, 3, 4, 5]).with(&[
        ("sluicegate", "serve ./gateway.yaml"),
        ("sluicegate -t -c /etc/sluicegate/gateway.yaml", "check a file"),
        ("sluicegate proxy --to http://127.0.0.1:9000 --limit 10/s", "serve without a file"),
        ("sluicegate help explain", "show the help of a command"),
    ]),
    CommandHelp::of("run", &[0, 1, 2, 3, 4]).with(&[
        ("sluicegate run", "serve ./gateway.yaml"),
        ("sluicegate run /etc/sluicegate/gateway.yaml", "serve another file"),
    ]),
    CommandHelp::of("check", &[0, 1, 2, 3]).with(&[
        ("sluicegate check", "check ./gateway.yaml"),
        ("sluicegate check --strict gateway.yaml", "fail on warnings too"),
        ("sluicegate check --fetch", "fetch the keys of the issuers of tokens too"),
        ("helm template . | sluicegate check -", "check what another program writes"),
    ]),
    CommandHelp::of("explain", ADMIN_CODES).with(&[
        ("sluicegate explain GET /api/ --ip 192.0.2.7", "by the file alone, with fresh counters"),
        ("sluicegate explain GET /api/ -H 'X-Account-Id: acme' --live", "with the running counters"),
        ("sluicegate explain --limits sms --key account=acme --live", "a call of the rate-limit service"),
    ]),
    CommandHelp::of("test", &[0, 1, 2, 3]).with(&[
        ("sluicegate test", "run every *_test.yaml beside ./gateway.yaml"),
        ("sluicegate test limits_test.yaml --filter office", "some scenarios of one file"),
        ("sluicegate test --junit report.xml", "with a report for continuous integration"),
    ]),
    CommandHelp::of("replay", &[0, 1, 2, 3]).with(&[
        ("sluicegate replay access.log", "what ./gateway.yaml would have done with these requests"),
        ("sluicegate replay *.log.gz -c new.yaml --against gateway.yaml", "what a new file changes"),
        ("sluicegate replay access.log --html report.html", "a page with plots"),
        (
            "sluicegate replay nginx.log --format '$msec $request_time $remote_addr \"$request\" $status'",
            "a log of nginx with exact times",
        ),
    ]),
    CommandHelp::of("recommend", &[0, 1, 2]).with(&[
        ("sluicegate recommend access.log", "a limit per client address that spares 99.9% of them"),
        ("sluicegate recommend access.log --key account --spare 99% --period 1m", "per account and minute"),
        (
            "sluicegate recommend access.log --key account --period month --zone Europe/Berlin",
            "a quota per account and calendar month",
        ),
    ]),
    CommandHelp::of("reload", ADMIN_CODES)
        .with(&[("sluicegate reload", "reload the gateway that serves ./gateway.yaml")]),
    CommandHelp::of("status", ADMIN_CODES).with(&[
        ("sluicegate status", "servers, limits, bans and rejections on one screen"),
        ("sluicegate status --json", "everything, for programs"),
    ]),
    CommandHelp::of("top", ADMIN_CODES).with(&[
        ("sluicegate top", "once a second, until q; the arrow keys choose the limit whose keys are listed"),
        ("sluicegate top --once", "print once"),
        ("sluicegate top --json | jq .keys", "for programs"),
    ]),
    CommandHelp::of("keys", ADMIN_CODES).with(&[
        ("sluicegate keys per-ip", "the keys that are refused most"),
        ("sluicegate keys per-ip --by asked --top 50", "the 50 keys that ask most"),
        ("sluicegate api-key list", "list API keys, which is another command"),
    ]),
    CommandHelp::of("usage", ADMIN_CODES).with(&[
        ("sluicegate usage plan", "what each account has used of the limit `plan` in this month"),
        ("sluicegate usage plan --window last --csv", "the last month, for an invoice"),
    ]),
    CommandHelp::of("show", ADMIN_CODES)
        .with(&[("sluicegate show per-ip ip=192.0.2.7", "what a key asks and has left")]),
    CommandHelp::of("reset", ADMIN_CODES)
        .with(&[("sluicegate reset per-ip ip=192.0.2.7", "forget what the key has used")]),
    CommandHelp::of("grant", ADMIN_CODES).with(&[
        (
            "sluicegate grant per-ip ip=192.0.2.7 --rate 100/s --burst 200 --for 1h --reason 'a demo'",
            "another rate for one hour",
        ),
        ("sluicegate grant slots account=acme --max-concurrent 50 --for 1d", "more requests in flight"),
    ]),
    CommandHelp::of("revoke", ADMIN_CODES)
        .with(&[("sluicegate revoke per-ip ip=192.0.2.7", "the numbers of the limit hold again")]),
    CommandHelp::of("pause", ADMIN_CODES).with(&[("sluicegate pause per-ip --for 1h", "it rejects nobody")]),
    CommandHelp::of("resume", ADMIN_CODES).with(&[("sluicegate resume --all", "all limits act again")]),
    CommandHelp::of("set", ADMIN_CODES)
        .with(&[("sluicegate set per-ip rate=20/s burst=40 --for 2h", "other numbers for two hours")]),
    CommandHelp::of("unset", ADMIN_CODES).with(&[("sluicegate unset per-ip", "the file's numbers again")]),
    CommandHelp::of("bans", ADMIN_CODES).with(&[("sluicegate bans", "the bans in force")]),
    CommandHelp::of("ban", ADMIN_CODES).with(&[
        ("sluicegate ban 192.0.2.7 --for 1h --reason 'a scraper'", "an address"),
        ("sluicegate ban 192.0.2.0/24", "a network"),
        ("sluicegate ban account=acme --for 1d", "an account"),
    ]),
    CommandHelp::of("unban", ADMIN_CODES)
        .with(&[("sluicegate unban 192.0.2.7", "end the ban of an address")]),
    CommandHelp::of("api-key", &[0, 1, 2]).with(&[
        ("sluicegate api-key new --account acme --until 90d", "make a key; only its hash is kept"),
        ("sluicegate api-key list", "list the keys by the first digits of their hashes"),
        ("sluicegate api-key disable 5e884898da28", "refuse a key from now on"),
        ("sluicegate keys per-account", "list the accounts that ask most, which is another command"),
    ]),
    CommandHelp::of("proxy", &[0, 1, 2, 4]).with(&[
        ("sluicegate proxy --to http://127.0.0.1:9000 --limit 10/s", "10 requests per second per client"),
        ("sluicegate proxy --to unix:/run/app.sock --limit 5/s --limit 100/m --listen 8000", "two rates"),
    ]),
    CommandHelp::of("init", &[0, 1, 2]).with(&[
        ("sluicegate init", "write ./gateway.yaml, and the schema for editors beside it"),
        ("sluicegate init -c /etc/sluicegate/gateway.yaml", "write another file"),
    ]),
    CommandHelp::of("import", &[0, 1, 2, 3]).with(&[
        ("sluicegate import /etc/nginx/nginx.conf -o gateway.yaml", "the report goes to stderr"),
        (
            "sluicegate import ingress.yaml > gateway.yaml",
            "Ingress objects with annotations of ingress-nginx",
        ),
        ("sluicegate import openapi.json > gateway.yaml", "an OpenAPI document with x-ratelimit and quotas"),
        (
            "sluicegate import nginx.conf --report json 2> report.json > gateway.yaml",
            "for programs; exit code 1 says that something that limits, denies or answers was lost",
        ),
    ]),
    CommandHelp::of("schema", &[0, 2]).with(&[
        ("sluicegate schema > gateway.schema.json", "for editors and other programs"),
        ("sluicegate schema --format markdown", "every field with its default, meaning and example"),
    ]),
    CommandHelp::of("completions", &[0, 2]).with(&[
        ("sluicegate completions bash > /etc/bash_completion.d/sluicegate", "for bash"),
        ("sluicegate completions zsh > ~/.zfunc/_sluicegate", "for zsh; ~/.zfunc must be in $fpath"),
        ("sluicegate completions fish > ~/.config/fish/completions/sluicegate.fish", "for fish"),
    ]),
    CommandHelp::of("man", &[0, 1, 2]).with(&[
        ("sluicegate man | man -l -", "read the page"),
        ("sluicegate man --dir /usr/local/share/man/man1", "install one page per command"),
    ]),
    CommandHelp::of("version", &[0, 2]).with(&[("sluicegate version", "print the version")]),
];

/// The help of the command of this name; `sluicegate` is the program itself.
pub(super) fn find_help(command: &str) -> &'static CommandHelp {
    ALL.iter().find(|help| help.command == command).unwrap_or(&ALL[0])
}

impl CommandHelp {
    const fn of(command: &'static str, codes: &'static [usize]) -> CommandHelp {
        CommandHelp { command, examples: &[], codes }
    }

    const fn with(self, examples: &'static [CommandExample]) -> CommandHelp {
        CommandHelp { examples, ..self }
    }

    /// The exit codes that the command uses, with their meanings.
    pub(super) fn exit_codes(&self) -> impl Iterator<Item = (usize, &'static str)> {
        self.codes.iter().map(|&code| (code, EXIT_CODES[code]))
    }

    fn render_text(&self) -> String {
        let mut out = "Examples:\n".to_owned();
        for (command, purpose) in self.examples {
            // Writing into a String cannot fail.
            let _ = writeln!(out, "  {command}\n      {purpose}");
        }
        out.push_str("\nExit codes:\n");
        for (code, meaning) in self.exit_codes() {
            let _ = writeln!(out, "  {code}  {meaning}");
        }
        out.truncate(out.trim_end().len());
        out
    }
}

/// The command line with the help of every command.
pub(super) fn build_command() -> Command {
    let command = CommandLine::command().after_help(find_help("sluicegate").render_text());
    command.mut_subcommands(|verb| {
        let text = find_help(verb.get_name()).render_text();
        verb.after_help(text)
    })
}
