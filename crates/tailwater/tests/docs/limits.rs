//! `docs/limits.md`

use std::collections::BTreeSet;
use std::fmt::Write as _;

use tw_base::limit::{Bound, Limit, Unit};
use tw_reference::limits::chapters;

use crate::directives::link;
use crate::{MODULES, cell, check, heading};

const INTRO: &str = "\
Every loop, queue and buffer that a client, a disk or the configuration can fill has a limit. Limits with a directive can
be configured. Limits with a constant are part of the program, because no sensible configuration would change them.
";

/// The default of a directive, and where it is explained.
fn default_of(name: &str) -> String {
    let all = tw_app::all_directives(MODULES).into_iter().map(|(_, directive)| directive);
    let directive = all
        .chain(tw_modules::oidc_provider_directives())
        .find(|directive| directive.name == name)
        .unwrap_or_else(|| panic!("a limit names the directive {name}, which does not exist"));
    directive.default.map_or_else(|| "none".to_owned(), |default| format!("`{default}`"))
}

fn value(value: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes if value >= 1 << 20 && value.is_multiple_of(1 << 20) => format!("{} MiB", value >> 20),
        Unit::Bytes if value >= 1 << 10 && value.is_multiple_of(1 << 10) => format!("{} KiB", value >> 10),
        Unit::Bytes => format!("{value} bytes"),
        Unit::Count => value.to_string(),
        Unit::Micros if value.is_multiple_of(1_000_000) => format!("{} s", value / 1_000_000),
        Unit::Micros if value.is_multiple_of(1000) => format!("{} ms", value / 1000),
        Unit::Micros => format!("{value} µs"),
    }
}

fn row(limit: &Limit, out: &mut String) {
    let (default, set_by) = match limit.bound {
        Bound::Directive(name) => (default_of(name), format!("[{name}]({})", link(name))),
        Bound::Parameter(name, parameter, default) => {
            default_of(name);
            (format!("`{default}`"), format!("[{name}]({}) `{parameter}`", link(name)))
        }
        Bound::Constant(name, number, unit) => (value(number, unit), format!("constant `{name}`")),
    };
    writeln!(out, "| {} | {} | {set_by} | {} |", cell(&limit.what()), cell(&default), cell(limit.then))
        .unwrap();
}

/// Names of the directives that set a limit.
pub(crate) fn directives_of_limits() -> BTreeSet<&'static str> {
    let name = |limit: Limit| match limit.bound {
        Bound::Directive(name) | Bound::Parameter(name, ..) => Some(name),
        Bound::Constant(..) => None,
    };
    chapters().into_iter().flat_map(|chapter| chapter.limits).filter_map(name).collect()
}

#[test]
fn limits_are_documented() {
    let mut out = format!("# Limits\n\n{INTRO}\n");
    for chapter in chapters() {
        let heading = heading(chapter.title);
        writeln!(out, "## {heading}\n\n| limit on | default | set by | beyond it |\n|---|---|---|---|")
            .unwrap();
        for limit in &chapter.limits {
            row(limit, &mut out);
        }
        out.push('\n');
    }
    check("limits.md", &out);
}
