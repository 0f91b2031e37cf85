//! Rooms of a large crate: a module may use only rooms below its own, as docs/dependencies.md lists them.
//!
//! A fence that begins with "```rooms CRATE" lists rooms from top to bottom, one layer a line; rooms of one line do
//! not know each other. Modules in parentheses are one room. A line "up: FROM → TO N" admits N uses against that order. The number has to be exact, so it
//! can only fall.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::modules::{Mention, Modules};
use super::tree::Tree;

const MAP: &str = "docs/dependencies.md";
const FENCE: &str = "```rooms ";
const EXCEPTION: &str = "up: ";

/// Rooms of one crate.
#[derive(Debug, Default)]
struct Rooms {
    /// Each module with its room and layer, 0 at the top. A room is named by its first module.
    layers: BTreeMap<String, (String, usize)>,
    /// Admitted uses upwards.
    exceptions: BTreeMap<(String, String), usize>,
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(map) = tree.get(MAP) else { return Vec::new() };
    fences(&map.text)
        .into_iter()
        .flat_map(|(name, lines)| check_crate(tree, name, &Rooms::parse(&lines)))
        .collect()
}

fn check_crate(tree: &Tree, name: &str, rooms: &Rooms) -> Vec<Finding> {
    let modules = Modules::of(tree, name);
    let mut findings = Vec::new();
    let mut up: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (path, file) in modules.iter() {
        // The root declares everything.
        if path.is_empty() {
            continue;
        }
        let Some((room, layer)) = rooms.of(path) else {
            findings.push(Finding::error(&file.path, 0, format!("{MAP} lists no room for it")));
            continue;
        };
        for target in modules.used_by(path, |mention| mention != Mention::Child) {
            if let Some((other, below)) = rooms.of(&target)
                && other != room
                && below <= layer
            {
                let uses = up.entry((room.to_owned(), other.to_owned())).or_default();
                uses.insert(format!("{} uses {}", path.join("::"), target.join("::")));
            }
        }
    }
    let pairs: BTreeSet<_> = up.keys().chain(rooms.exceptions.keys()).cloned().collect();
    for pair in pairs {
        let uses = up.get(&pair);
        let count = uses.map_or(0, BTreeSet::len);
        let admitted = rooms.exceptions.get(&pair).copied().unwrap_or(0);
        if count != admitted {
            let uses: Vec<_> = uses.into_iter().flatten().cloned().collect();
            let (from, to) = pair;
            let text = format!(
                "{name}: {from} → {to} is used {count} times, {admitted} are listed: {}",
                uses.join(", ")
            );
            findings.push(Finding::error(MAP, 0, text));
        }
    }
    findings
}

/// The fences with their lines, by the name of the crate.
fn fences(map: &str) -> Vec<(&str, Vec<&str>)> {
    let mut lines = map.lines();
    let mut fences = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix(FENCE) {
            fences.push((name.trim(), lines.by_ref().take_while(|line| *line != "```").collect()));
        }
    }
    fences
}

impl Rooms {
    fn parse(lines: &[&str]) -> Self {
        let mut rooms = Self::default();
        let mut layer = 0;
        for line in lines {
            if let Some(exceptions) = line.strip_prefix(EXCEPTION) {
                rooms.exceptions.extend(exceptions.split(", ").map(parse_exception));
                continue;
            }
            for part in line.split('>') {
                rooms.add_layer(part, layer);
                layer += 1;
            }
        }
        rooms
    }

    fn add_layer(&mut self, text: &str, layer: usize) {
        let mut open: Option<&str> = None;
        for word in text.split_whitespace() {
            let module = word.trim_start_matches('(').trim_end_matches(')');
            let room = open.unwrap_or(module);
            self.layers.insert(module.to_owned(), (room.to_owned(), layer));
            open = match (word.starts_with('('), word.ends_with(')')) {
                (_, true) => None,
                (true, false) => Some(module),
                (false, false) => open,
            };
        }
    }

    /// The innermost room around a module, with its layer.
    fn of(&self, module: &[String]) -> Option<(&str, usize)> {
        (1..=module.len()).rev().find_map(|len| {
            self.layers.get(&module[..len].join("::")).map(|(room, layer)| (room.as_str(), *layer))
        })
    }
}

/// One exception, as "FROM → TO N".
fn parse_exception(text: &str) -> ((String, String), usize) {
    let (pair, count) = text.rsplit_once(' ').unwrap_or((text, ""));
    let (from, to) = pair.split_once('→').unwrap_or((pair, ""));
    ((from.trim().to_owned(), to.trim().to_owned()), count.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_files(rooms: &str, files: &[(&str, &str)]) -> Vec<String> {
        let map = format!("# Map\n\n```rooms tw-a\n{rooms}\n```\n");
        let mut all = vec![(MAP, &*map)];
        all.extend(files);
        check(&Tree::of(&all)).into_iter().map(|finding| finding.text).collect()
    }

    const TOP: &str = "crates/tw-a/src/top.rs";
    const LOW: &str = "crates/tw-a/src/low/mod.rs";
    const PART: &str = "crates/tw-a/src/low/part.rs";

    #[test]
    fn uses_downwards_pass_and_uses_upwards_fail() {
        let down = [
            (TOP, "use crate::low::{Low, part::Part as P};\n"),
            (LOW, "struct Low;\n"),
            (PART, "use super::Low;\n"),
        ];
        assert_eq!(check_files("top\nlow", &down), [""; 0]);
        let up = [
            (TOP, "struct Top;\n"),
            (LOW, "pub use part::Part;\n"),
            (PART, "fn f() { crate::top::Top::new() }\n"),
        ];
        let expected = "tw-a: low → top is used 1 times, 0 are listed: low::part uses top";
        assert_eq!(check_files("top\nlow", &up), [expected]);
        assert_eq!(check_files("top\nlow\nup: low → top 1", &up), [""; 0]);
        assert_eq!(check_files("top > low\nup: low → top 1", &up), [""; 0]);
        let two = "top > low\nup: low → top 1, low → side 2";
        let unused = "tw-a: low → side is used 0 times, 2 are listed: ";
        assert_eq!(check_files(two, &up), [unused], "a line has several exceptions");
        assert_eq!(check_files("top low", &up), [expected], "rooms of one layer do not use each other");
    }

    #[test]
    fn modules_in_parentheses_use_each_other() {
        let files = [
            (TOP, "use crate::low::Low;\n"),
            (LOW, "use crate::top::Top;\n"),
            ("crates/tw-a/src/deep.rs", "use crate::top::Top;\n"),
        ];
        let expected = "tw-a: deep → top is used 1 times, 0 are listed: deep uses top";
        assert_eq!(check_files("(top low)\ndeep", &files), [expected]);
        assert_eq!(check_files("deep > (top low)", &files), [""; 0]);
    }

    #[test]
    fn counts_may_only_fall() {
        let files = [(TOP, "struct Top;\n"), (LOW, "struct Low;\n")];
        assert_eq!(
            check_files("top\nlow\nup: low → top 1", &files),
            ["tw-a: low → top is used 0 times, 1 are listed: "]
        );
    }

    #[test]
    fn names_are_resolved_to_their_modules() {
        let files = [
            (TOP, "pub use crate::low::part::Part;\n"),
            (LOW, "struct Low;\n"),
            (PART, "struct Part;\n"),
            ("crates/tw-a/src/base.rs", "use crate::top::Part;\n"),
        ];
        assert_eq!(
            check_files("top\nbase\nlow", &files),
            [""; 0],
            "the name comes from below, whoever passes it on"
        );
    }

    #[test]
    fn every_module_has_a_room_and_tests_need_none() {
        let files = [(TOP, "struct Top;\n"), ("crates/tw-a/src/top/tests.rs", "use crate::low::Low;\n")];
        assert_eq!(check_files("low", &files), ["docs/dependencies.md lists no room for it"]);
        let inline = [
            (TOP, "struct Top;\n"),
            (LOW, "struct Low;\n#[cfg(test)]\nmod tests {\n    use crate::top::Top;\n}\n"),
        ];
        assert_eq!(check_files("top\nlow", &inline), [""; 0]);
    }
}
