//! Modules of one crate, one for each file, and the uses between them as the code names them. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{File, Tree};

/// Re-exports that are followed from one name to its module.
const MAX_HOPS: usize = 8;

/// Path of a module or an item, without `crate`.
pub(super) type Path = Vec<String>;

/// Way in which the code of a module names a path of its crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mention {
    /// Import, or a path in the code.
    Use,
    /// Path that begins with the name of a module inside.
    Child,
    /// `pub use`: the module passes a name on.
    Reexport,
}

/// Path of the crate in the code of a module.
struct NamedPath {
    path: Path,
    mention: Mention,
}

/// Modules of one crate, by their path.
#[derive(Default)]
pub(super) struct Modules<'a> {
    files: BTreeMap<Path, &'a File>,
    named: BTreeMap<Path, Vec<NamedPath>>,
    /// Names that a module has from elsewhere.
    imports: BTreeMap<Path, BTreeMap<String, Path>>,
}

impl<'a> Modules<'a> {
    /// Modules of the crate in the directory `crates/NAME`.
    pub(super) fn of(tree: &'a Tree, name: &str) -> Self {
        let prefix = format!("crates/{name}/src/");
        let mut files: BTreeMap<Path, &File> = BTreeMap::new();
        for file in tree.rust() {
            let Some(path) = file.path.strip_prefix(&prefix).and_then(|path| path.strip_suffix(".rs")) else {
                continue;
            };
            let mut path: Path = path.split('/').map(str::to_owned).collect();
            let is_root = path.len() == 1 && path.last().is_some_and(|last| last == "lib" || last == "main");
            if is_root || path.last().is_some_and(|last| last == "mod") {
                path.pop();
            }
            // A crate with a library has its programs beside it.
            if !is_root || file.path.ends_with("lib.rs") || !files.contains_key(&path) {
                files.insert(path, file);
            }
        }
        let tests: BTreeSet<Path> = files.iter().flat_map(|(path, file)| test_modules(path, file)).collect();
        files.retain(|path, _| !(1..=path.len()).any(|len| tests.contains(&path[..len])));
        let mut modules = Self { files, ..Self::default() };
        let named = modules.files.iter().map(|(path, file)| (path.clone(), modules.read(path, file)));
        modules.named = named.collect();
        let imports = modules.named.iter().map(|(module, named)| {
            let names =
                named.iter().filter_map(|named| Some((named.path.last()?.clone(), named.path.clone())));
            (module.clone(), names.collect())
        });
        modules.imports = imports.collect();
        modules
    }

    /// All modules with their files.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Path, &'a File)> {
        self.files.iter().map(|(path, file)| (path, *file))
    }

    /// Modules other than itself that a module names in one of these ways.
    pub(super) fn used_by(&self, module: &Path, counts: impl Fn(Mention) -> bool) -> BTreeSet<Path> {
        let named = self.named.get(module).into_iter().flatten();
        let counted = named.filter(|named| counts(named.mention));
        counted.map(|named| self.home(&named.path)).filter(|home| home != module).collect()
    }

    /// The module in which the item at `path` is written.
    fn home(&self, path: &[String]) -> Path {
        let mut path = path.to_owned();
        for _ in 0..MAX_HOPS {
            let (module, rest) = path.split_at(self.module_len(&path));
            let import = rest.first().and_then(|name| self.imports.get(module)?.get(name));
            match import {
                Some(import) if !import.starts_with(&path[..=module.len()]) => {
                    path = import.iter().chain(&rest[1..]).cloned().collect();
                }
                _ => break,
            }
        }
        path.truncate(self.module_len(&path));
        path
    }

    /// Length of the part of a path that is a module.
    fn module_len(&self, path: &[String]) -> usize {
        (0..=path.len()).rev().find(|len| self.files.contains_key(&path[..*len])).unwrap_or(0)
    }

    /// All paths of this crate in the code of a module, from the root.
    fn read(&self, module: &Path, file: &File) -> Vec<NamedPath> {
        let code = without_tests(&file.code);
        let tokens = tokens(code);
        let mut reader = PathReader { tokens: &tokens, scope: module.clone(), named: Vec::new() };
        let mut blocks: Vec<usize> = Vec::new();
        let mut depth: usize = 0;
        let mut mention = Mention::Use;
        let mut at = 0;
        while let Some(token) = tokens.get(at).copied() {
            let is_path = tokens.get(at + 1) == Some(&"::") && (at == 0 || tokens[at - 1] != "::");
            match token {
                "mod" if tokens.get(at + 2) == Some(&"{") => {
                    blocks.push(depth);
                    reader.scope.push(tokens[at + 1].to_owned());
                }
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    if blocks.last() == Some(&depth) {
                        blocks.pop();
                        reader.scope.pop();
                    }
                }
                "use" if is_public(&tokens[..at]) => mention = Mention::Reexport,
                ";" => mention = Mention::Use,
                _ => {}
            }
            let is_own = matches!(token, "crate" | "super" | "self");
            if is_path && (is_own || self.is_child(module, token)) {
                let of_child = if mention == Mention::Use { Mention::Child } else { mention };
                at = match is_own {
                    true => reader.read_tree(at, &[], mention),
                    false => reader.read_tree(at, module, of_child),
                };
            } else {
                at += 1;
            }
        }
        reader.named
    }

    fn is_child(&self, module: &Path, name: &str) -> bool {
        self.files.contains_key(&[module.as_slice(), &[name.to_owned()]].concat())
    }
}

/// Reads paths, and trees of them, in the code of a module.
struct PathReader<'a> {
    tokens: &'a [&'a str],
    /// Module of the code that is read; modules inside of the file have longer paths.
    scope: Path,
    named: Vec<NamedPath>,
}

impl PathReader<'_> {
    /// Reads a path or a tree of paths from `at` below `prefix`, and returns the offset after it.
    fn read_tree(&mut self, mut at: usize, prefix: &[String], mention: Mention) -> usize {
        let mut path = prefix.to_owned();
        loop {
            match self.tokens.get(at).copied() {
                Some("crate") => path.clear(),
                Some("self") if path.is_empty() && prefix.is_empty() => path.clone_from(&self.scope),
                Some("self") => {}
                Some("super") => {
                    if path.is_empty() && prefix.is_empty() {
                        path.clone_from(&self.scope);
                    }
                    path.pop();
                }
                Some("{") => {
                    at += 1;
                    while at < self.tokens.len() && self.tokens[at] != "}" {
                        at = match self.tokens[at] {
                            "," => at + 1,
                            _ => self.read_tree(at, &path, mention),
                        };
                    }
                    return at + 1;
                }
                Some(name) if is_name(name) => path.push(name.to_owned()),
                _ => {
                    self.named.push(NamedPath { path, mention });
                    return at + 1;
                }
            }
            at += 1;
            if self.tokens.get(at) != Some(&"::") {
                self.named.push(NamedPath { path, mention });
                // An alias belongs to the path.
                let is_renamed = self.tokens.get(at) == Some(&"as");
                return if is_renamed { at + 2 } else { at };
            }
            at += 1;
        }
    }
}

/// Modules that exist for tests only, as `file` declares them.
fn test_modules<'a>(module: &'a [String], file: &'a File) -> impl Iterator<Item = Path> + 'a {
    let declarations = file.code.split("#[cfg(test)]").skip(1);
    declarations.filter_map(move |code| {
        let code = code.trim_start();
        let name = code.strip_prefix("pub(crate) ").unwrap_or(code).strip_prefix("mod ")?;
        let name = name.split_once(';')?.0;
        is_name(name).then(|| [module, &[name.to_owned()]].concat())
    })
}

/// Code in front of the tests at the end of a file.
fn without_tests(code: &str) -> &str {
    let is_tests =
        |at: &usize| code[*at..].trim_start_matches("#[cfg(test)]").trim_start().starts_with("mod tests {");
    code.match_indices("#[cfg(test)]").map(|(at, _)| at).find(is_tests).map_or(code, |at| &code[..at])
}

/// Returns true if the tokens end with `pub` or `pub(…)`.
fn is_public(tokens: &[&str]) -> bool {
    match tokens {
        [.., "pub"] => true,
        [.., ")"] => {
            tokens.iter().rposition(|token| *token == "(").is_some_and(|at| at > 0 && tokens[at - 1] == "pub")
        }
        _ => false,
    }
}

fn is_name(token: &str) -> bool {
    token.chars().all(|c| c.is_alphanumeric() || c == '_')
        && token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::`, and every other character by itself.
fn tokens(code: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let len = if is_part(first) {
            rest.find(|c| !is_part(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, behind) = rest.split_at(len);
        if !first.is_whitespace() {
            tokens.push(token);
        }
        rest = behind;
    }
    tokens
}
