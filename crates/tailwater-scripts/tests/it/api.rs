//! The API without a server: each file in `js` is a module whose functions check one part of it.

use tw_script::Outcome;

use crate::host::Host;

/// Runs all functions of a module; each throws if an expectation is not met.
fn check(source: &str) {
    let mut host = Host::in_thread();
    let prelude = "
        function equal(actual, expected) {
            const [a, b] = [JSON.stringify(actual), JSON.stringify(expected)];
            if (a !== b) { throw new Error(`${a} instead of ${b}`); }
        }
        function throws(fn, text) {
            try { fn(); } catch (e) {
                if (!String(e).includes(text)) { throw new Error(`'${e}' instead of '${text}'`); }
                return;
            }
            throw new Error(`no exception '${text}'`);
        }
        async function rejects(promise, text) {
            try { await promise; } catch (e) {
                if (!String(e).includes(text)) { throw new Error(`'${e}' instead of '${text}'`); }
                return;
            }
            throw new Error(`no rejection '${text}'`);
        }
        ";
    let names: Vec<&str> = source
        .lines()
        .filter_map(|line| line.strip_prefix("function ").or_else(|| line.strip_prefix("async function ")))
        .filter_map(|line| line.split('(').next())
        .collect();
    assert!(!names.is_empty());
    let (imports, body): (Vec<&str>, Vec<&str>) =
        source.lines().partition(|line| line.starts_with("import "));
    let module = format!(
        "{}\n{prelude}\n{}\nexport default {{ {} }};",
        imports.join("\n"),
        body.join("\n"),
        names.join(", ")
    );
    host.load(&module).unwrap();
    for name in names {
        let ended = host.content(&format!("test.{name}"));
        assert_eq!(ended.outcome, Some(Outcome::Value(None)), "{name}");
    }
}

macro_rules! modules {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(include_str!(concat!("js/", stringify!($name), ".js")));
        }
    )*};
}

#[test]
#[should_panic(expected = "1 instead of 2")]
fn failed_expectation_is_noticed() {
    check("async function fails() {\n await null; equal(1, 2);\n}");
}

modules! { api_names buffer crypto encoding fetch_classes njs querystring timers webcrypto xml zlib }
