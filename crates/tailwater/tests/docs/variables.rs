//! `docs/variables.md`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tw_conf::NginxVariables;
use tw_core::vars::{VarDef, VarKind};

use crate::{cell, check, names, rows};

const NGINX: &str = include_str!("nginx/variables.tsv");

const INTRO: &str = "\
All variables by module. Write `$name` or `${name}` in every directive whose arguments may contain variables.

- A variable without a value is empty, or `-` in an access log.
- A name that ends in *name* stands for many variables: `$http_`*name* is any request field, such as `$http_user_agent`.
- *Settable* variables can be changed with `set` and similar directives.
- You can define more variables with `set`, `map` and similar directives, and with named groups in regular expressions.
- If you define a variable that does not exist in nginx, your definition hides the built-in one in all of the `http`, `stream` or `mail` block.
  `tailwater -t` notes this.
";

/// A variable of any protocol.
struct Variable {
    name: &'static str,
    is_family: bool,
    is_settable: bool,
    doc: &'static str,
}

impl Variable {
    fn of<S>(def: &'static VarDef<S>) -> Self {
        let is_family = matches!(def.get, VarKind::Family(_));
        let mut changeable = NginxVariables::HTTP.changeable().chain(NginxVariables::STREAM.changeable());
        let is_settable = def.assign.is_some() || changeable.any(|name| name == def.name);
        Self { name: def.name, is_family, is_settable, doc: def.doc }
    }
}

/// Adds variables to a chapter. One that several protocols have stands there once.
fn add(
    chapters: &mut Vec<(&'static str, Vec<Variable>)>,
    title: &'static str,
    variables: impl Iterator<Item = Variable>,
) {
    let at = chapters.iter().position(|(known, _)| *known == title).unwrap_or_else(|| {
        chapters.push((title, Vec::new()));
        chapters.len() - 1
    });
    for variable in variables {
        let list = &mut chapters[at].1;
        if list.iter().all(|known| known.name != variable.name) {
            list.push(variable);
        }
    }
}

/// Title and variables of every module.
fn chapters() -> Vec<(&'static str, Vec<Variable>)> {
    let mut chapters = Vec::new();
    let core = tw_server::http::variables::VARIABLES.iter().copied().flatten();
    add(&mut chapters, "core", core.map(Variable::of));
    for module in tw_server::load::modules(tw_modules::MODULES) {
        add(&mut chapters, module.name, module.variables().iter().map(Variable::of));
    }
    let core = tw_stream::variables::VARIABLES.iter().copied().flatten();
    add(&mut chapters, "stream_core", core.map(Variable::of));
    for module in tw_stream::load::modules(tw_modules::STREAM_MODULES) {
        add(&mut chapters, module.name, module.variables().iter().map(Variable::of));
    }
    let core = tw_mail::variables::VARIABLES.iter().copied().flatten();
    add(&mut chapters, "mail_core", core.map(Variable::of));
    for module in tw_mail::load::modules(tw_modules::MAIL_MODULES) {
        add(&mut chapters, module.name, module.variables().iter().map(Variable::of));
    }
    chapters.retain(|(_, variables)| !variables.is_empty());
    for (_, variables) in &mut chapters {
        variables.sort_by_key(|variable| variable.name);
    }
    chapters
}

#[test]
fn variables_are_documented() {
    let chapters = chapters();
    let ours: BTreeSet<_> =
        chapters.iter().flat_map(|(_, list)| list).map(|variable| variable.name).collect();
    let mut missing: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    let mut theirs = BTreeSet::new();
    for (module, name) in rows(NGINX) {
        theirs.insert(name);
        let is_ours =
            ours.contains(name) || ours.iter().any(|ours| ours.ends_with('_') && name.starts_with(ours));
        // Variables of `stream` and `mail` come with these protocols.
        if !is_ours && module.contains("_http_") {
            missing.entry(module).or_default().insert(name);
        }
    }

    let mut out = format!("# Variables\n\n{INTRO}\n");
    let is_theirs = |name: &&str| {
        // nginx's documentation writes one name for all of these.
        name.starts_with("tcpinfo_")
            || theirs.iter().any(|theirs| theirs == name || theirs.ends_with('_') && name.starts_with(theirs))
    };
    let only_ours: BTreeSet<_> = ours.iter().filter(|name| !is_theirs(name)).copied().collect();
    let count = missing.values().map(BTreeSet::len).sum::<usize>();
    writeln!(
        out,
        "There are {} variables. {} of them do not exist in nginx: {}. {count} HTTP variables of nginx are [not \
         supported yet](#not-supported-yet).\n",
        ours.len(),
        only_ours.len(),
        names(&only_ours, "$")
    )
    .unwrap();
    for (title, variables) in &chapters {
        writeln!(out, "## Module {title}\n\n| variable | settable | meaning |\n|---|---|---|").unwrap();
        for variable in variables {
            let family = if variable.is_family { "*name*" } else { "" };
            let settable = if variable.is_settable { "yes" } else { "" };
            assert!(variable.doc.ends_with('.'), "${}: {}", variable.name, variable.doc);
            writeln!(out, "| `${}`{family} | {settable} | {} |", variable.name, cell(variable.doc)).unwrap();
        }
        out.push('\n');
    }
    out.push_str("## Not supported yet\n\n| nginx module | variables |\n|---|---|\n");
    for (module, missing) in &missing {
        writeln!(out, "| {module} | {} |", names(missing, "$")).unwrap();
    }
    check("variables.md", &out);
}
