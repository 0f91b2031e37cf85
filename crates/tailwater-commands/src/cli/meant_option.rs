//! Suggestions for words that look like options and are none.

use tw_base::command_line::Opt;

use crate::options;

/// Names that other programs have for an option: the commands that have it, what to write here, and the names.
const OTHER_NAMES: &[(&[&str], &str, &str)] = &[
    (&["serve", "proxy"], "--listen", "-p -P --port -b --bind -a --address --addr --host"),
    (&["serve"], "--spa", "-s --single --fallback --history-api-fallback"),
    (&["serve"], "--compress", "-g -z --gzip --brotli"),
    (&["serve"], "--auth", "-u --user --password --basic-auth"),
    (&["serve", "proxy"], "--tls", "-S --ssl --https --domain"),
    (&["proxy"], "--insecure", "-k --no-verify --skip-verify"),
    (&[""], "-c", "-f --config --conf --configuration --config-file"),
    (&[""], "-t", "--test --check --configtest --validate"),
    (&[""], "-T", "--dump"),
    (&[""], "-p", "--prefix"),
    (&[""], "-s reload", "-r --reload"),
    (&[""], "-s stop", "--stop"),
    (&[""], "-s quit", "--quit"),
    (&[""], "-g \"daemon off;\"", "-F --foreground --no-daemon"),
    (&[""], "tailwater serve --listen", "--port --listen --bind"),
];

/// Most likely meaning of an unknown word of a command, whose name is empty for `tailwater` itself: an option that other programs call
/// so, or the one with the nearest name.
pub(super) fn find(command: &str, word: &str) -> Option<&'static str> {
    let name = word.split('=').next().unwrap_or_default();
    let is_it = |names: &str| names.split(' ').any(|other| other == name);
    let other = OTHER_NAMES.iter().find(|(commands, _, names)| commands.contains(&command) && is_it(names));
    match other {
        Some((_, meant, _)) => Some(meant),
        None => {
            let bare = name.strip_prefix("--")?;
            let names = || options(command).iter().flat_map(|option| option.names).copied();
            let nearest = tw_conf::nearest(bare, names().filter_map(|name| name.strip_prefix("--")))?;
            names().find(|name| name.strip_prefix("--") == Some(nearest))
        }
    }
}

fn options(command: &str) -> &'static [Opt] {
    match command {
        "" => options::MAIN,
        "serve" => options::SERVE,
        "proxy" => options::PROXY,
        "purge" => options::PURGE,
        "fleet" => options::FLEET,
        "trust" => options::TRUST,
        "waf" => options::WAF,
        "hash-password" => options::HASH_PASSWORD,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_other_programs_and_misspelt_ones_are_found() {
        for (command, word, expected) in [
            ("serve", "--port", Some("--listen")),
            ("serve", "--port=3000", Some("--listen")),
            ("serve", "-p", Some("--listen")),
            ("serve", "--lisen", Some("--listen")),
            ("serve", "--gzip", Some("--compress")),
            ("proxy", "--port", Some("--listen")),
            ("proxy", "--cahe", Some("--cache")),
            ("", "--config", Some("-c")),
            ("", "--explian", Some("--explain")),
            ("serve", "-x", None),
            ("serve", "--frobnicate", None),
            ("purge", "--port", None),
        ] {
            assert_eq!(find(command, word), expected, "{command} {word}");
        }
    }

    #[test]
    fn suggested_options_exist() {
        for (commands, meant, _) in OTHER_NAMES {
            let name = meant.split(' ').next().unwrap_or_default();
            let is_there =
                |command: &&str| options(command).iter().any(|option| option.names.contains(&name));
            assert!(name == "tailwater" || commands.iter().all(is_there), "{meant}");
        }
    }
}
