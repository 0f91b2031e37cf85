//! `docs/variables.md`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tw_reference::variables::{VariableChapter, chapters};

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

#[test]
fn variables_are_documented() {
    let chapters = chapters();
    let ours: BTreeSet<_> =
        chapters.iter().flat_map(|chapter| &chapter.variables).map(|variable| variable.name).collect();
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
    for VariableChapter { title, variables } in &chapters {
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
