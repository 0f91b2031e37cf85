//! `packaging/completions`: what bash, zsh and fish propose on a command line.

use std::fmt::Write as _;

use tailwater_commands::options::{
    CACHE_CHECK, CACHE_EXPORT, CACHE_FORMAT, CACHE_STAT, FLEET, HASH_PASSWORD, JS, MAIN, PROXY, PURGE, SERVE,
    TRUST,
};
use tw_base::command_line::{Kind, Opt};

use crate::top_options::TOP;
use crate::{NOTE, check_file, ingress_options};

const SERVE_DOC: &str = "serve a directory without a configuration file";
const PROXY_DOC: &str = "pass requests on without a configuration file";
const PURGE_DOC: &str = "remove responses from a cache of the running server";
const CACHE_DOC: &str = "look into the directory of a cache, or format a device for one";
const FLEET_DOC: &str = "show the nodes that share purges with the running server";
const TOP_DOC: &str = "show a running server in this terminal";
const JS_DOC: &str = "run a script by hand";
const HASH_PASSWORD_DOC: &str = "hash a password for auth_basic_user_file";
const TRUST_DOC: &str = "make the system trust the local authority of serve --tls localhost";

/// Words behind `cache`, and the options of each.
const CACHE: [(&str, &[Opt]); 4] =
    [("stat", CACHE_STAT), ("check", CACHE_CHECK), ("export", CACHE_EXPORT), ("format", CACHE_FORMAT)];

/// All ways to write options.
fn names(options: &[Opt]) -> String {
    options.iter().flat_map(|option| option.names).copied().collect::<Vec<_>>().join(" ")
}

/// Description as in `-h`, without the default that a build may have chosen, and without characters that a shell
/// might interpret.
fn about(option: &Opt) -> String {
    let text = option.about.split(" (default: {").next().unwrap_or_default();
    text.replace('\'', "").replace('[', "(").replace(']', ")")
}

/// Branches of a `case` for what stands behind an option.
fn bash_values(options: &[Opt], out: &mut String) {
    for option in options {
        let Some(value) = &option.value else { continue };
        let made = match value.kind {
            Kind::File => "_tailwater_names -f".to_owned(),
            Kind::Directory => "_tailwater_names -d".to_owned(),
            Kind::Words(words) => format!("_tailwater_words '{}'", words.join(" ")),
            Kind::Text => "COMPREPLY=()".to_owned(),
        };
        writeln!(out, "        {}) {made}; return ;;", option.names.join(" | ")).unwrap();
    }
}

/// Function that the completions of every program begin with.
const BASH_WORDS: &str = "\n_tailwater_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"${COMP_WORDS[COMP_CWORD]}\"); }\n\n";

/// Function for options whose values are names of files.
const BASH_NAMES: &str = "\
# Names may have blanks in them: what is proposed is quoted as a file name.
_tailwater_names() {
    compopt -o filenames 2> /dev/null
    mapfile -t COMPREPLY < <(compgen \"$1\" -- \"${COMP_WORDS[COMP_CWORD]}\")
}

";

/// Completion of words of `tailwater-top` that are no options.
const TOP_URLS: &str = "_tailwater_words 'http:// unix:'";

#[test]
fn completions_for_bash_are_documented() {
    let mut out = format!("# {NOTE}\n{BASH_WORDS}{BASH_NAMES}");
    out.push_str(
        "_tailwater() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
",
    );
    for (command, options, others) in [
        ("serve", SERVE, "_tailwater_names -d"),
        ("proxy", PROXY, "_tailwater_words 'http:// https:// unix:'"),
        ("purge", PURGE, "COMPREPLY=()"),
        ("fleet", FLEET, "_tailwater_words status key push diff rollout rollback follow"),
        ("trust", TRUST, "COMPREPLY=()"),
        ("hash-password", HASH_PASSWORD, "COMPREPLY=()"),
        ("top", TOP, TOP_URLS),
        ("js", JS, "_tailwater_names -f"),
    ] {
        writeln!(out, "    if ((COMP_CWORD > 1)) && [[ ${{COMP_WORDS[1]}} == {command} ]]; then").unwrap();
        out.push_str("        case $before in\n");
        let mut values = String::new();
        bash_values(options, &mut values);
        values.lines().for_each(|line| writeln!(out, "    {line}").unwrap());
        out.push_str("        esac\n");
        let words = format!("_tailwater_words '{}'", names(options));
        writeln!(out, "        if [[ $word == -* ]]; then {words}; else {others}; fi").unwrap();
        out.push_str("        return\n    fi\n");
    }
    out.push_str("    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == cache ]]; then\n        case ${COMP_WORDS[2]} in\n");
    for (word, options) in CACHE {
        writeln!(out, "        {word})\n            case $before in").unwrap();
        let mut values = String::new();
        bash_values(options, &mut values);
        values.lines().for_each(|line| writeln!(out, "        {line}").unwrap());
        let words = format!("_tailwater_words '{}'", names(options));
        let kind = if word == "format" { "-f" } else { "-d" };
        writeln!(out, "            esac\n            if [[ $word == -* ]]; then {words}; else _tailwater_names {kind}; fi ;;").unwrap();
    }
    out.push_str(
        "        *) _tailwater_words 'stat check export format' ;;\n        esac\n        return\n    fi\n",
    );
    out.push_str("    case $before in\n");
    bash_values(MAIN, &mut out);
    out.push_str(
        "    esac\n    local commands=\n    ((COMP_CWORD > 1)) || commands='serve proxy purge cache fleet trust hash-password top js'\n",
    );
    writeln!(
        out,
        "    _tailwater_words \"{} $commands\"\n}}\n\ncomplete -F _tailwater tailwater",
        names(MAIN)
    )
    .unwrap();
    check_file("packaging/completions/tailwater.bash", &out);
}

/// Arguments of `_arguments`.
fn zsh_options(options: &[Opt], out: &mut String) {
    for option in options {
        let about = about(option).replace(':', "\\:");
        let value = option.value.as_ref().map(|value| {
            let action = match value.kind {
                Kind::File => "_files".to_owned(),
                Kind::Directory => "_files -/".to_owned(),
                Kind::Words(words) => format!("({})", words.join(" ")),
                Kind::Text => " ".to_owned(),
            };
            format!(":{}:{action}", value.name)
        });
        let value = value.unwrap_or_default();
        for name in option.names {
            // The others make no sense beside it.
            let others = option.names.join(" ");
            writeln!(out, "            '({others}){name}[{about}]{value}' \\").unwrap();
        }
    }
}

#[test]
fn completions_for_zsh_are_documented() {
    let mut out = format!("#compdef tailwater\n# {NOTE}\n\n_tailwater() {{\n");
    let table = [
        ("serve", SERVE, "1:directory:_files -/"),
        ("proxy", PROXY, "*:URL:_urls"),
        ("purge", PURGE, "1:key: "),
        ("fleet", FLEET, "1:word:(status key push diff rollout rollback follow)"),
        ("trust", TRUST, "*: : "),
        ("hash-password", HASH_PASSWORD, "1:user:_users"),
        ("top", TOP, "1:URL:_urls"),
        ("js", JS, "*:file:_files"),
    ];
    for (at, (command, options, others)) in table.into_iter().enumerate() {
        let branch = if at == 0 { "if" } else { "elif" };
        writeln!(out, "    {branch} ((CURRENT > 2)) && [[ $words[2] == {command} ]]; then").unwrap();
        out.push_str("        shift words\n        ((CURRENT--))\n        _arguments \\\n");
        zsh_options(options, &mut out);
        writeln!(out, "            '{others}'").unwrap();
    }
    out.push_str("    elif ((CURRENT > 2)) && [[ $words[2] == cache ]]; then\n        shift words\n        ((CURRENT--))\n        case $words[2] in\n");
    for (word, options) in CACHE {
        writeln!(
            out,
            "        {word})\n            shift words\n            ((CURRENT--))\n            _arguments \\"
        )
        .unwrap();
        let mut lines = String::new();
        zsh_options(options, &mut lines);
        lines.lines().for_each(|line| writeln!(out, "    {line}").unwrap());
        let files = if word == "format" { "'1:device:_files'" } else { "'*:directory:_files -/'" };
        writeln!(out, "                {files} ;;").unwrap();
    }
    out.push_str("        *) _arguments '1:word:(stat check export format)' ;;\n        esac\n");
    out.push_str("    else\n        _arguments -s \\\n");
    zsh_options(MAIN, &mut out);
    let commands = format!(
        "serve\\:\"{SERVE_DOC}\" proxy\\:\"{PROXY_DOC}\" purge\\:\"{PURGE_DOC}\" cache\\:\"{CACHE_DOC}\" fleet\\:\"{FLEET_DOC}\" trust\\:\"{TRUST_DOC}\" hash-password\\:\"{HASH_PASSWORD_DOC}\" top\\:\"{TOP_DOC}\" js\\:\"{JS_DOC}\""
    );
    writeln!(out, "            '1::command:(({commands}))'\n    fi\n}}\n\n_tailwater \"$@\"").unwrap();
    check_file("packaging/completions/_tailwater", &out);
}

fn fish_options(options: &[Opt], program: &str, condition: &str, out: &mut String) {
    for option in options {
        write!(out, "complete -c {program}").unwrap();
        if !condition.is_empty() {
            write!(out, " -n '{condition}'").unwrap();
        }
        for name in option.names {
            match name.strip_prefix("--") {
                Some(long) => write!(out, " -l {long}").unwrap(),
                None => write!(out, " -s '{}'", name.trim_start_matches('-')).unwrap(),
            }
        }
        match option.value.as_ref().map(|value| value.kind) {
            None => {}
            Some(Kind::File) => out.push_str(" -r -F"),
            Some(Kind::Directory) => out.push_str(" -x -a '(__fish_complete_directories)'"),
            Some(Kind::Words(words)) => write!(out, " -x -a '{}'", words.join(" ")).unwrap(),
            Some(Kind::Text) => out.push_str(" -x"),
        }
        writeln!(out, " -d '{}'", about(option)).unwrap();
    }
}

#[test]
fn completions_for_fish_are_documented() {
    let mut out = format!("# {NOTE}\n\ncomplete -c tailwater -f\n");
    writeln!(out, "complete -c tailwater -n __fish_is_first_token -a serve -d '{SERVE_DOC}'").unwrap();
    writeln!(out, "complete -c tailwater -n __fish_is_first_token -a proxy -d '{PROXY_DOC}'").unwrap();
    writeln!(out, "complete -c tailwater -n __fish_is_first_token -a purge -d '{PURGE_DOC}'").unwrap();
    writeln!(out, "complete -c tailwater -n __fish_is_first_token -a cache -d '{CACHE_DOC}'").unwrap();
    writeln!(out, "complete -c tailwater -n __fish_is_first_token -a fleet -d '{FLEET_DOC}'").unwrap();
    writeln!(out, "complete -c tailwater -n __fish_is_first_token -a trust -d '{TRUST_DOC}'").unwrap();
    writeln!(out, "complete -c tailwater -n __fish_is_first_token -a hash-password -d '{HASH_PASSWORD_DOC}'")
        .unwrap();
    writeln!(out, "complete -c tailwater -n __fish_is_first_token -a top -d '{TOP_DOC}'").unwrap();
    writeln!(out, "complete -c tailwater -n __fish_is_first_token -a js -d '{JS_DOC}'").unwrap();
    let is_serve = "__fish_seen_subcommand_from serve";
    let is_proxy = "__fish_seen_subcommand_from proxy";
    for (options, condition) in [
        (MAIN, "not __fish_seen_subcommand_from serve proxy purge cache fleet trust hash-password top js"),
        (SERVE, is_serve),
        (PROXY, is_proxy),
        (PURGE, "__fish_seen_subcommand_from purge"),
        (FLEET, "__fish_seen_subcommand_from fleet"),
        (TRUST, "__fish_seen_subcommand_from trust"),
        (HASH_PASSWORD, "__fish_seen_subcommand_from hash-password"),
        (TOP, "__fish_seen_subcommand_from top"),
        (JS, "__fish_seen_subcommand_from js"),
    ] {
        fish_options(options, "tailwater", condition, &mut out);
    }
    for (word, options) in CACHE {
        let condition = format!("__fish_seen_subcommand_from cache; and __fish_seen_subcommand_from {word}");
        fish_options(options, "tailwater", &condition, &mut out);
        let files = if word == "format" { "-F" } else { "-a '(__fish_complete_directories)'" };
        writeln!(out, "complete -c tailwater -n '{condition}' {files}").unwrap();
    }
    let condition =
        "__fish_seen_subcommand_from cache; and not __fish_seen_subcommand_from stat check export format";
    writeln!(out, "complete -c tailwater -n '{condition}' -a 'stat check export format'").unwrap();
    writeln!(out, "complete -c tailwater -n '__fish_seen_subcommand_from fleet' -a 'status key push diff rollout rollback follow'").unwrap();
    writeln!(out, "complete -c tailwater -n '__fish_seen_subcommand_from js' -F").unwrap();
    writeln!(out, "complete -c tailwater -n '{is_serve}' -a '(__fish_complete_directories)'").unwrap();
    check_file("packaging/completions/tailwater.fish", &out);
}

#[test]
fn completions_for_top_are_documented() {
    let mut bash = format!("# {NOTE}\n{BASH_WORDS}{BASH_NAMES}_tailwater_top() {{\n");
    bash.push_str("    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n    case $before in\n");
    bash_values(TOP, &mut bash);
    let words = format!("_tailwater_words '{}'", names(TOP));
    writeln!(bash, "    esac\n    if [[ $word == -* ]]; then {words}; else {TOP_URLS}; fi\n}}\n").unwrap();
    bash.push_str("complete -F _tailwater_top tailwater-top\n");
    check_file("packaging/completions/tailwater-top.bash", &bash);

    let mut zsh = format!("#compdef tailwater-top\n# {NOTE}\n\n_arguments \\\n");
    zsh_options(TOP, &mut zsh);
    zsh.push_str("            '1:URL:_urls'\n");
    check_file("packaging/completions/_tailwater-top", &zsh.replace("            '", "    '"));

    let mut fish = format!("# {NOTE}\n\ncomplete -c tailwater-top -f\n");
    fish_options(TOP, "tailwater-top", "", &mut fish);
    check_file("packaging/completions/tailwater-top.fish", &fish);
}

#[test]
fn completions_for_ingress_are_documented() {
    let options = ingress_options::OPTIONS;
    let mut bash = format!("# {NOTE}\n{BASH_WORDS}{BASH_NAMES}_tailwater_ingress() {{\n");
    bash.push_str("    local before=${COMP_WORDS[COMP_CWORD - 1]}\n    case $before in\n");
    bash_values(options, &mut bash);
    writeln!(bash, "    esac\n    _tailwater_words '{}'\n}}\n", names(options)).unwrap();
    bash.push_str("complete -F _tailwater_ingress tailwater-ingress\n");
    check_file("packaging/completions/tailwater-ingress.bash", &bash);

    let mut zsh = format!("#compdef tailwater-ingress\n# {NOTE}\n\n_arguments \\\n");
    zsh_options(options, &mut zsh);
    let zsh = zsh.trim_end_matches([' ', '\\', '\n']).replace("            '", "    '") + "\n";
    check_file("packaging/completions/_tailwater-ingress", &zsh);

    let mut fish = format!("# {NOTE}\n\ncomplete -c tailwater-ingress -f\n");
    fish_options(options, "tailwater-ingress", "", &mut fish);
    check_file("packaging/completions/tailwater-ingress.fish", &fish);
}
