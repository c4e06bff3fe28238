//! `man` and `completions`: the manual pages and the completions of shells, from the definition of the command line.

use std::path::Path;
use std::{fs, io};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::command_help::{CommandHelp, build_command, find_help};
use super::{CommandResult, failed, print_result};

pub(super) fn run_completions(shell: Shell) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut build_command(), "sluicegate", &mut script);
    print_result(&String::from_utf8_lossy(&script))
}

/// Prints one page for the program and its commands, or writes a page for each into `dir`.
pub(super) fn run_man(dir: Option<&Path>) -> CommandResult {
    let write = |dir| write_pages(dir).map(|count| format!("wrote {count} pages\n"));
    let outcome = dir.map_or_else(render_whole_page, write);
    let printed = outcome.map_err(|error| {
        let place = dir.map(|dir| format!(" into {}", dir.display())).unwrap_or_default();
        failed(format!("cannot write the manual{place}: {error}"))
    })?;
    print_result(&printed)
}

/// The program without `help`, which has no page of its own.
fn documented_command() -> Command {
    build_command().disable_help_subcommand(true)
}

pub(super) fn render_whole_page() -> io::Result<String> {
    let command = documented_command();
    let page = render_beginning(&Man::new(command.clone()))?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    page.push_str(".SH COMMANDS\n");
    for verb in command.get_subcommands() {
        page.push_str(&render_verb(verb)?);
    }
    let help = find_help(command.get_name());
    page.push_str(&render_examples(help, "SH"));
    page.push_str(&render_exit_codes(help));
    Ok(page)
}

/// The sections before the commands.
fn render_beginning(man: &Man) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    Ok(page)
}

/// A subsection of the whole page: the options of the program and its exit codes are not repeated.
fn render_verb(verb: &Command) -> io::Result<String> {
    let name = verb.get_name().to_owned();
    let man = Man::new(verb.clone().disable_help_flag(true).bin_name(format!("sluicegate {name}")));
    let mut heading = Roff::new();
    heading.control("SS", [name.as_str()]);
    let mut body = Vec::new();
    man.render_description_section(&mut body)?;
    body.extend(b".PP\n");
    man.render_synopsis_section(&mut body)?;
    if verb.get_arguments().next().is_some() {
        man.render_options_section(&mut body)?;
    }
    // The parts are sections with a preamble each.
    let body = String::from_utf8_lossy(&body).into_owned();
    let is_text = |line: &&str| ![".SH ", ".ie ", ".el "].iter().any(|control| line.starts_with(control));
    let body: String = body.lines().filter(is_text).map(|line| format!("{line}\n")).collect();
    Ok(heading.to_roff() + &body + &render_examples(find_help(&name), "PP"))
}

fn render_examples(help: &CommandHelp, heading: &str) -> String {
    let mut roff = Roff::new();
    match heading {
        "SH" => roff.control("SH", ["EXAMPLES"]),
        _ => roff.control("PP", []).text([roman("Examples:")]),
    };
    for (command, purpose) in help.examples {
        roff.control("TP", []);
        roff.text([bold(*command)]).text([roman(*purpose)]);
    }
    roff.to_roff()
}

fn render_exit_codes(help: &CommandHelp) -> String {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in help.exit_codes() {
        roff.control("TP", []);
        roff.text([bold(code.to_string())]).text([roman(meaning)]);
    }
    roff.to_roff()
}

/// Writes a page for the program and for each command; returns their number.
fn write_pages(dir: &Path) -> io::Result<usize> {
    let mut command = documented_command();
    command.build();
    fs::create_dir_all(dir)?;
    let all: Vec<&Command> = std::iter::once(&command).chain(command.get_subcommands()).collect();
    for one in &all {
        let man = Man::new((*one).clone());
        let mut page = render_beginning(&man)?;
        if one.has_subcommands() {
            man.render_subcommands_section(&mut page)?;
        }
        let help = find_help(one.get_name());
        let ending = render_examples(help, "SH") + &render_exit_codes(help);
        page.extend(ending.into_bytes());
        fs::write(dir.join(man.get_filename()), page)?;
    }
    Ok(all.len())
}
