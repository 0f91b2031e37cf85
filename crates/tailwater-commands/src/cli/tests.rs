use super::purge_order::{Purge, PurgeMode, PurgeScope};
use super::*;

fn parsed(line: &str) -> Result<Command, String> {
    let words = line.split_whitespace().map(|word| word.as_bytes().to_vec());
    parse(words).map_err(|error| error.to_string())
}

#[test]
fn options() {
    let none = Options::default;
    let some = |text: &str| Some(text.as_bytes().to_vec());
    let quiet = Options { test: Some(Test::Check), messages: Messages::Problems, ..none() };
    let table = [
        ("", none()),
        ("-", none()),
        ("-v", Options { show: Some(Show::Version), ..none() }),
        ("-vV", Options { show: Some(Show::Configuration), ..none() }),
        ("--version", Options { show: Some(Show::Version), output: Output::Standard, ..none() }),
        ("-h", Options { show: Some(Show::Help), output: Output::Standard, ..none() }),
        ("-? -v", Options { show: Some(Show::Help), output: Output::Standard, ..none() }),
        ("--help", Options { show: Some(Show::Help), output: Output::Standard, ..none() }),
        ("help", Options { show: Some(Show::Help), output: Output::Standard, ..none() }),
        ("-t", Options { test: Some(Test::Check), ..none() }),
        ("-T -t", Options { test: Some(Test::Dump), ..none() }),
        ("-q -t", Options { test: Some(Test::Check), messages: Messages::Problems, ..none() }),
        ("-tqc f", Options { file: some("f"), ..quiet }),
        ("-cf -pd", Options { file: some("f"), prefix: some("d"), ..none() }),
        ("-e stderr -gx;", Options { error_log: some("stderr"), globals: some("x;"), ..none() }),
        ("-sreload", Options { order: Some(SignalCommand::Reload), ..none() }),
        ("-s stop", Options { order: Some(SignalCommand::Stop), ..none() }),
        ("--explain a/b", Options { explain: some("a/b"), test: Some(Test::Check), ..none() }),
        (
            "-qT --explain=a",
            Options { explain: some("a"), test: Some(Test::Dump), messages: Messages::Problems, ..none() },
        ),
        ("-c -t", Options { file: some("-t"), ..none() }),
    ];
    for (line, expected) in table {
        assert_eq!(parsed(line), Ok(Command::Main(expected)), "{line}");
    }
}

#[test]
fn serving() {
    let some = |text: &str| Some(text.as_bytes().to_vec());
    let table = [
        ("serve", None, None),
        ("serve .", some("."), None),
        ("serve -", some("-"), None),
        ("serve --listen 1 d", some("d"), some("1")),
        ("serve d --listen=[::]:80", some("d"), some("[::]:80")),
        ("serve -l 1", None, some("1")),
    ];
    for (line, directory, listen) in table {
        let expected = Command::Serve(ServeOptions { directory, listen, ..ServeOptions::default() });
        assert_eq!(parsed(line), Ok(expected), "{line}");
    }
    let expected = ServeOptions {
        absent: Absent::Index,
        coding: Coding::Compressed,
        auth: some("a:b=c"),
        ..ServeOptions::default()
    };
    assert_eq!(parsed("serve --spa --compress --auth=a:b=c"), Ok(Command::Serve(expected)));
    let tls = |directory: Option<&str>, trusted: Option<&str>| TlsOptions {
        names: vec![b"a.example".to_vec(), b"b.example".to_vec()],
        terms: TermsOfService::Accepted,
        directory: directory.map(Into::into),
        trusted: trusted.map(Into::into),
    };
    let expected = ServeOptions { tls: tls(None, None), ..ServeOptions::default() };
    assert_eq!(parsed("serve --tls a.example --accept-terms --tls=b.example"), Ok(Command::Serve(expected)));
    let expected = ProxyOptions {
        urls: vec![b"1".to_vec()],
        tls: tls(Some("https://ca.example/"), Some("ca.crt")),
        ..ProxyOptions::default()
    };
    let line = "proxy 1 --accept-terms --tls a.example --tls b.example --acme-directory=https://ca.example/ --acme-ca ca.crt";
    assert_eq!(parsed(line), Ok(Command::Proxy(expected)));
    assert_eq!(parsed("serve d --help"), Ok(Command::ServeHelp));
    assert_eq!(parsed("help serve"), Ok(Command::ServeHelp));
}

#[test]
fn proxying() {
    let some = |text: &str| Some(text.as_bytes().to_vec());
    let urls = |urls: &[&str]| urls.iter().map(|url| url.as_bytes().to_vec()).collect::<Vec<_>>();
    for (line, expected) in [
        ("proxy 1", ProxyOptions { urls: urls(&["1"]), ..ProxyOptions::default() }),
        (
            "proxy a b -l 1",
            ProxyOptions { urls: urls(&["a", "b"]), listen: some("1"), ..ProxyOptions::default() },
        ),
        (
            "proxy --change-host http://a/?b=c --timeout=1s",
            ProxyOptions {
                urls: urls(&["http://a/?b=c"]),
                host: SentHost::Origin,
                timeout: some("1s"),
                ..ProxyOptions::default()
            },
        ),
        (
            "proxy a --cache=d --cache-size 1g",
            ProxyOptions {
                urls: urls(&["a"]),
                cache: some("d"),
                cache_size: some("1g"),
                ..ProxyOptions::default()
            },
        ),
    ] {
        assert_eq!(parsed(line), Ok(Command::Proxy(expected)), "{line}");
    }
    assert_eq!(parsed("proxy a --help"), Ok(Command::ProxyHelp));
}

#[test]
fn purging() {
    let some = |text: &str| Some(text.as_bytes().to_vec());
    let order = |named, mode| Purge { cache: b"c".to_vec(), named, mode };
    let key = |text: &str| PurgeScope::Key(text.as_bytes().to_vec());
    for (line, main, order) in [
        ("purge --cache c a/b?c=d*", Options::default(), order(key("a/b?c=d*"), PurgeMode::Hard)),
        (
            "purge -c f -p d --cache=c --soft -",
            Options { file: some("f"), prefix: some("d"), ..Options::default() },
            order(key("-"), PurgeMode::Soft),
        ),
        (
            "purge --tag t --cache c -g x;",
            Options { globals: some("x;"), ..Options::default() },
            order(PurgeScope::Tag(b"t".to_vec()), PurgeMode::Hard),
        ),
    ] {
        assert_eq!(parsed(line), Ok(Command::Purge(PurgeOptions { main, order })), "{line}");
    }
    assert_eq!(parsed("purge --help"), Ok(Command::PurgeHelp));
}

#[test]
fn words_of_top_are_those_of_another_program() {
    let words =
        |words: &[&str]| Ok(Command::Top(words.iter().map(|word| word.as_bytes().to_vec()).collect()));
    assert_eq!(parsed("top"), words(&[]));
    assert_eq!(parsed("top --once 8000 -x"), words(&["--once", "8000", "-x"]));
    assert_eq!(parsed("help top"), words(&["--help"]));
    assert_eq!(parsed("help proxy_pass"), Ok(Command::Reference(b"proxy_pass".to_vec())));
}

#[test]
fn words_behind_js_are_those_of_the_script() {
    let words = |words: &[&str]| Ok(Command::Js(words.iter().map(|word| word.as_bytes().to_vec()).collect()));
    assert_eq!(parsed("js a.js"), words(&["a.js"]));
    assert_eq!(parsed("js a.js -x --help b"), words(&["a.js", "-x", "--help", "b"]));
    assert_eq!(parsed("js - a"), words(&["-", "a"]));
    for help in ["js --help", "js -h", "js -?", "help js"] {
        assert_eq!(parsed(help), Ok(Command::JsHelp), "{help}");
    }
    assert_eq!(parsed("js").unwrap_err().to_string(), "\"js\" needs a file");
    assert!(parsed("js -x a.js").is_err());
}

#[test]
fn every_option_has_a_record_and_every_record_is_an_option() {
    use tw_base::command_line::{Kind, Opt};

    use crate::options;
    let find_known = |options: &[Opt], line: &str| {
        let name = line.rsplit(' ').next().unwrap_or_default();
        options.iter().find(|option| option.names.contains(&name)).map(|option| option.value.is_some())
    };
    let long = [
        "help",
        "version",
        "explain",
        "control-token",
        "listen",
        "spa",
        "compress",
        "auth",
        "php",
        "quiet",
        "change-host",
        "timeout",
        "cache",
        "cache-size",
        "tls",
        "accept-terms",
        "acme-directory",
        "acme-ca",
        "soft",
        "tag",
        "insecure",
        "jobs",
        "json",
        "key-prefix",
        "list",
        "quick",
        "rate",
        "to",
        "key",
        "trust",
        "directory",
        "metrics",
        "author",
        "waves",
        "settle",
        "max-errors",
        "remove",
        "store",
    ]
    .map(|name| format!("--{name}"));
    let short = ('!'..='~').filter(|c| !matches!(c, '-' | '=')).map(|c| format!("-{c}"));
    for name in short.chain(long) {
        for (options, line) in [
            (options::MAIN, name.clone()),
            (options::SERVE, format!("serve {name}")),
            (options::PROXY, format!("proxy 1 {name}")),
            (options::PURGE, format!("purge --cache c 1 {name}")),
            (options::CACHE_STAT, format!("cache stat d {name}")),
            (options::CACHE_CHECK, format!("cache check d {name}")),
            (options::CACHE_EXPORT, format!("cache export d --list {name}")),
            (options::FLEET, format!("fleet status {name}")),
            (options::CACHE_FORMAT, format!("cache format /dev/null {name}")),
            (options::TRUST, format!("trust {name}")),
            (options::WAF, format!("waf test f {name}")),
            (options::HASH_PASSWORD, format!("hash-password {name}")),
        ] {
            let takes_value = match parsed(&line) {
                Ok(_) => Some(false),
                Err(error) => error.contains(" requires ").then_some(true),
            };
            assert_eq!(takes_value, find_known(options, &line), "{line}");
        }
    }
    for (begin, options) in [
        ("", options::MAIN),
        ("serve ", options::SERVE),
        ("proxy 1 ", options::PROXY),
        ("purge ", options::PURGE),
        ("cache stat d ", options::CACHE_STAT),
        ("cache check d ", options::CACHE_CHECK),
        ("cache export d ", options::CACHE_EXPORT),
        ("trust ", options::TRUST),
        ("waf test f ", options::WAF),
        ("hash-password ", options::HASH_PASSWORD),
    ] {
        for option in options {
            let values = match option.value.as_ref().map(|value| value.kind) {
                None => &[""][..],
                Some(Kind::Words(words)) => words,
                Some(_) if matches!(option.names, ["--jobs" | "--rate"]) => &["7"],
                Some(Kind::File | Kind::Directory | Kind::Text) => &["x"],
            };
            for line in option.names.iter().flat_map(|name| values.iter().map(move |v| format!("{name} {v}")))
            {
                let rest = match (begin, option.names.first()) {
                    ("purge ", Some(&"--tag")) => " --cache c",
                    ("purge ", _) => " --cache c 1",
                    ("cache export d ", Some(&"--to" | &"--list")) => "",
                    ("cache export d ", _) => " --list",
                    ("", Some(&"--control-token")) => " -l 1",
                    _ => "",
                };
                let line = format!("{begin}{line}{rest}");
                assert!(parsed(&line).is_ok(), "{line}");
            }
        }
    }
}

#[test]
fn looking_into_caches() {
    let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    for line in ["cache -h", "cache check -h", "help cache", "cache export --help"] {
        assert_eq!(parsed(line), Ok(Command::CacheHelp), "{line}");
    }
    let stat = CacheStatOptions { directories: words(&["a", "b"]), is_quick: true, is_json: false };
    assert_eq!(parsed("cache stat a --quick b"), Ok(Command::Cache(CacheCommand::Stat(stat))));
    let check =
        CacheCheckOptions { directories: words(&["a"]), jobs: 4, rate: Some(50 << 20), removes: true };
    assert_eq!(
        parsed("cache check --jobs=4 --rate 50m --remove a"),
        Ok(Command::Cache(CacheCommand::Check(check)))
    );
    let export = CacheExportOptions {
        directories: words(&["a"]),
        key_prefix: b"x/".to_vec(),
        target: ExportTarget::Tar(b"o.tar".to_vec()),
        is_json: false,
        rate: None,
    };
    assert_eq!(
        parsed("cache export a --key-prefix x/ --to o.tar"),
        Ok(Command::Cache(CacheCommand::Export(export)))
    );
}

#[test]
fn trusting() {
    let trust = |change, store: Option<&str>| {
        Ok(Command::Trust(TrustOptions { change, store: store.map(|store| store.as_bytes().to_vec()) }))
    };
    assert_eq!(parsed("trust"), trust(TrustChange::Added, None));
    assert_eq!(parsed("trust --remove --store=/d"), trust(TrustChange::Removed, Some("/d")));
    assert_eq!(parsed("trust -h"), Ok(Command::TrustHelp));
    assert_eq!(parsed("help trust"), Ok(Command::TrustHelp));
    for line in ["trust x", "trust --remove=x", "trust -x"] {
        assert!(parsed(line).is_err(), "{line}");
    }
}

#[test]
fn hashing_passwords() {
    let user = |user: Option<&str>| Ok(Command::HashPassword(user.map(|user| user.as_bytes().to_vec())));
    assert_eq!(parsed("hash-password"), user(None));
    assert_eq!(parsed("hash-password alice"), user(Some("alice")));
    assert_eq!(parsed("hash-password -h"), Ok(Command::HashPasswordHelp));
    assert_eq!(parsed("help hash-password"), Ok(Command::HashPasswordHelp));
    for line in ["hash-password alice secret", "hash-password -x", "hash-password --user=a"] {
        assert!(parsed(line).is_err(), "{line}");
    }
}

#[test]
fn mistakes() {
    for (line, expected) in [
        ("-x", "invalid option: \"-x\""),
        ("-tx", "invalid option: \"-x\""),
        ("x", "invalid option: \"x\""),
        ("--nonsense", "invalid option: \"--nonsense\""),
        ("-t serve", "invalid option: \"serve\""),
        ("-c", "option \"-c\" requires file name"),
        ("-tqc", "option \"-c\" requires file name"),
        ("-e", "option \"-e\" requires file name"),
        ("-p", "option \"-p\" requires directory name"),
        ("-g", "option \"-g\" requires parameter"),
        ("-t --explain", "option \"--explain\" requires URL"),
        ("--explains", "invalid option: \"--explains\""),
        ("-s", "option \"-s\" requires parameter"),
        ("-s restart", "invalid option: \"-s restart\""),
        ("help -x", "invalid option: \"-x\""),
        ("help serve me", "invalid option: \"me\""),
        ("serve a b", "invalid option: \"b\""),
        ("serve -x", "invalid option: \"-x\""),
        ("serve --listen", "option \"--listen\" requires an address"),
        ("serve --auth", "option \"--auth\" requires USER:PASSWORD"),
        ("serve --php", "option \"--php\" requires an address"),
        ("serve --spa=1", "invalid option: \"--spa=1\""),
        ("proxy", "no URL: where are the requests to go?"),
        ("proxy -x", "invalid option: \"-x\""),
        ("proxy a --timeout", "option \"--timeout\" requires a time"),
        ("proxy a --cache", "option \"--cache\" requires directory name"),
        ("purge a", "no --cache: where is something to be purged?"),
        ("purge --cache c", "purge needs a key or --tag"),
        ("purge --cache c a b", "invalid option: \"b\""),
        ("purge --cache c a --tag b", "either a key or a tag is purged, not both"),
        ("purge --cache c --tag a,b", "\"a,b\" is no tag: tags have neither spaces nor commas"),
        ("purge --cache", "option \"--cache\" requires the name of a cache"),
        ("purge --cache c a -t", "invalid option: \"-t\""),
        ("cache", "\"cache\" needs a word: stat, check, export or format"),
        ("cache look d", "invalid option: \"look\""),
        ("cache stat", "no directory: where is the cache?"),
        ("cache check d --jobs 0", "\"0\" is no number of jobs: 1 to 64"),
        ("cache check d --rate x", "\"x\" is no size, such as 50m"),
        ("cache check d --json", "invalid option: \"--json\""),
        ("cache export d", "cache export needs --to or --list"),
        ("cache export d --to f --list", "either --to or --list, not both"),
        ("cache export d --to f --json", "\"--json\" requires \"--list\""),
        ("proxy a --cache-size", "option \"--cache-size\" requires a size"),
    ] {
        assert_eq!(parsed(line), Err(expected.to_owned()), "{line}");
    }
}
#[test]
fn mistakes_have_hints() {
    let hint =
        |line: &str| parse(line.split_whitespace().map(|word| word.as_bytes().to_vec())).unwrap_err().hint;
    for (line, meant) in [
        ("reload", Some("-s reload")),
        ("relaod", Some("-s reload")),
        ("/srv/www", Some("tailwater serve /srv/www")),
        ("sevre", Some("tailwater serve")),
        ("hash-pasword", Some("tailwater hash-password")),
        ("porxy", Some("tailwater proxy")),
        ("http://a/", Some("tailwater proxy http://a/")),
        ("my.conf", Some("-c my.conf")),
        ("./public/", Some("tailwater serve ./public/")),
        ("nonsense", None),
        ("-x", None),
    ] {
        let meant = meant.map(|meant| format!("did you mean: {meant}? ")).unwrap_or_default();
        assert_eq!(hint(line), format!("{meant}tailwater -h lists the options"), "{line}");
    }
    for line in ["-s", "-s restart", "-s Reload"] {
        assert_eq!(hint(line), "-s takes one of: stop, quit, reopen, reload", "{line}");
    }
    assert_eq!(hint("serve -x"), "tailwater serve --help lists the options");
    let listen = "did you mean: --listen? tailwater serve --help lists the options";
    assert_eq!([hint("serve --port 3000"), hint("serve -p 3000")], [listen; 2]);
    assert_eq!(hint("--config a"), "did you mean: -c? tailwater -h lists the options");
    assert_eq!(hint("proxy"), "tailwater proxy --help lists the options");
}

#[test]
fn fleet_commands_need_their_files() {
    for (line, error) in [
        ("fleet", "needs a word"),
        ("fleet push", "\"fleet push\" needs --key"),
        ("fleet rollback", "\"fleet rollback\" needs --key"),
        ("fleet follow --trust a", "needs --trust and --directory"),
        ("fleet rollout --key a 1 2", "invalid"),
        ("fleet push --key a 1", "invalid"),
        ("fleet rollout --key a --waves 1,x", "invalid"),
    ] {
        let text = parsed(line).unwrap_err();
        assert!(text.contains(error), "{line}: {text}");
    }
    let Ok(Command::Fleet(options)) = parsed("fleet rollout 7 --key k --waves 1,50% --settle 5s") else {
        panic!("it is refused")
    };
    assert_eq!((options.version, options.settle.as_secs()), (Some(7), 5));
    assert_eq!(options.waves, [WaveSize::Nodes(1), WaveSize::Percent(50)]);
}
