//! Circles of modules: in a crate, no more than four files may use each other in a circle, so that each file can be read after those
//! that it uses. `mod` declarations, re-exports and tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::modules::{Mention, Modules, Path};
use super::tree::Tree;

/// Files in a circle.
const FILES_MAX: usize = 4;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let names = tree.rust().filter_map(|file| file.path.strip_prefix("crates/")?.split_once("/src/"));
    let names: BTreeSet<&str> = names.map(|(name, _)| name).collect();
    names.into_iter().filter_map(|name| check_crate(tree, name)).collect()
}

fn check_crate(tree: &Tree, name: &str) -> Option<Finding> {
    let largest = largest_circle(&Modules::of(tree, name));
    if largest.len() <= FILES_MAX {
        return None;
    }
    let modules: Vec<_> = largest.iter().map(|module| format!("crate::{}", module.join("::"))).collect();
    let text = format!("{} files use each other in a circle: {}", largest.len(), modules.join(", "));
    Some(Finding::error(&format!("crates/{name}/src"), 0, text))
}

/// Modules of the largest circle.
fn largest_circle(modules: &Modules<'_>) -> Vec<Path> {
    let uses: BTreeMap<&Path, BTreeSet<Path>> = modules
        .iter()
        .map(|(module, _)| (module, modules.used_by(module, |mention| mention != Mention::Reexport)))
        .collect();
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        uses.keys().map(|module| (*module, reach(module, &uses))).collect();
    let circle = |module: &Path| -> Vec<Path> {
        let forth = reached.get(module).into_iter().flatten();
        let is_in = |other: &&&Path| reached.get(**other).is_some_and(|back| back.contains(module));
        forth.filter(is_in).map(|other| (*other).clone()).collect()
    };
    uses.keys().map(|module| circle(module)).max_by_key(Vec::len).unwrap_or_default()
}

/// Modules that a module uses, directly or by others.
fn reach<'a>(module: &'a Path, uses: &'a BTreeMap<&Path, BTreeSet<Path>>) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut next = vec![module];
    while let Some(module) = next.pop() {
        let used = uses.get(module).into_iter().flatten();
        next.extend(used.filter(|used| reached.insert(*used)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate of modules, each with the names of the modules that it uses.
    fn findings(modules: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, String)> = modules
            .iter()
            .map(|(name, code)| (format!("crates/tw-a/src/{name}.rs"), (*code).to_owned()))
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, code)| (&**path, &**code)).collect();
        check(&Tree::of(&files)).into_iter().map(|finding| finding.text).collect()
    }

    const FIVE: [(&str, &str); 6] = [
        ("lib", "mod a; mod b; mod c; mod d; mod e;"),
        ("a", "use crate::b::B; pub struct A;"),
        ("b", "use crate::{c::{C, self}, d}; pub struct B;"),
        ("c", "fn f() { super::d::g() } pub struct C;"),
        ("d", "use super::e::E; pub fn g() {}"),
        ("e", "use crate::a::A; pub struct E;"),
    ];

    #[test]
    fn circle_of_five_files_is_refused() {
        let text = "5 files use each other in a circle: crate::a, crate::b, crate::c, crate::d, crate::e";
        assert_eq!(findings(&FIVE), [text]);
        let mut four = FIVE;
        four[5].1 = "pub struct E; #[cfg(test)] mod tests { use crate::a::A; }";
        assert_eq!(findings(&four), [""; 0]);
        four[5].1 = "use crate::b::B;";
        assert_eq!(findings(&four), [""; 0], "four files may");
    }

    #[test]
    fn reexports_lead_to_the_module_of_the_item() {
        let modules = [
            ("lib", "mod a; mod b; mod c; mod d; mod e; pub use a::A; pub(crate) use self::b::B;"),
            ("a", "use crate::B; pub struct A;"),
            ("b", "use crate::c::C; pub struct B;"),
            ("c", "use crate::d::D; pub struct C;"),
            ("d", "use crate::e::E; pub struct D;"),
            ("e", "pub struct E;"),
        ];
        assert_eq!(findings(&modules), [""; 0]);
        let mut circle = modules;
        circle[5].1 = "use crate::A; pub struct E;";
        assert_eq!(findings(&circle).len(), 1);
    }

    #[test]
    fn module_that_calls_its_children_is_part_of_the_circle() {
        let modules = [
            ("lib", "mod a; pub struct Shared;"),
            ("a/mod", "mod b; mod c; mod d; mod e; pub struct A; fn f() { b::f(); c::f(); d::f(); e::f() }"),
            ("a/b", "use super::A; pub fn f() {}"),
            ("a/c", "use super::A; pub fn f() {} pub mod inner { use super::f; }"),
            ("a/d", "use super::A; pub fn f() {}"),
            ("a/e", "use super::A; pub fn f() {}"),
        ];
        assert_eq!(findings(&modules).len(), 1);
        let mut tests = modules;
        tests[1].1 = "#[cfg(test)]\nmod b;\nmod c; mod d; mod e; pub struct A; fn f() { b::f(); c::f(); d::f(); e::f() }";
        assert_eq!(findings(&tests), [""; 0], "modules of tests do not count");
    }
}
