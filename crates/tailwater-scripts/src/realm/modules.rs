//! Modules of a script: the host has sent all sources.

use std::fmt::Write as _;
use std::rc::Rc;

use rquickjs::loader::{ImportAttributes, Loader, Resolver};
use rquickjs::module::Declared;
use rquickjs::{Ctx, Error, Module};
use tw_script::Load;

use crate::exception::BUILTIN_PREFIX;
use crate::native::MODULES;
use crate::state::State;

/// Name of the module that imports those of the configuration.
pub(super) const MAIN: &str = "tailwater:main";

/// Source of that module: each module of the configuration becomes a global object; one without a name only runs.
pub(super) fn main_source(modules: &[tw_script::Module]) -> String {
    let mut source = String::new();
    for (number, module) in modules.iter().enumerate() {
        let name = quote(&module.name);
        let path = quote(&module.path);
        if module.name.is_empty() {
            let _ = writeln!(source, "import {path};");
            continue;
        }
        let _ = writeln!(source, "import m{number} from {path}; globalThis[{name}] = m{number};");
    }
    source
}

/// A text as a literal of JavaScript.
fn quote(text: &str) -> String {
    let mut literal = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => literal.extend(['\\', character]),
            '\n' | '\r' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(literal, "\\u{:04x}", u32::from(character));
            }
            _ => literal.push(character),
        }
    }
    literal.push('"');
    literal
}

/// Finds the file behind the word of an `import` statement.
pub(super) struct ModuleResolver(pub(super) Rc<State>);

impl Resolver for ModuleResolver {
    fn resolve<'js>(
        &mut self,
        _: &Ctx<'js>,
        base: &str,
        name: &str,
        _: Option<ImportAttributes<'js>>,
    ) -> rquickjs::Result<String> {
        if base == MAIN {
            return Ok(name.to_owned());
        }
        if MODULES.contains(&name) {
            return Ok(format!("{BUILTIN_PREFIX}{name}"));
        }
        let imports = &self.0.load.imports;
        let found = imports.iter().find(|import| import.referrer == base && import.specifier == name);
        if let Some(import) = found {
            return Ok(import.path.clone());
        }
        *self.0.missing_import.borrow_mut() = Some((base.to_owned(), name.to_owned()));
        Err(Error::new_resolving(base, name))
    }
}

/// Compiles a source.
pub(super) struct ModuleLoader(pub(super) Rc<Load>);

impl Loader for ModuleLoader {
    fn load<'js>(
        &mut self,
        ctx: &Ctx<'js>,
        name: &str,
        _: Option<ImportAttributes<'js>>,
    ) -> rquickjs::Result<Module<'js, Declared>> {
        if let Some(part) = name.strip_prefix(BUILTIN_PREFIX) {
            let source =
                format!("export default globalThis[Symbol.for('{BUILTIN_PREFIX}module')]('{part}');");
            return Module::declare(ctx.clone(), name, source);
        }
        match self.0.sources.iter().find(|source| source.path == name) {
            Some(source) => Module::declare(ctx.clone(), name, source.text.as_slice()),
            None => Err(Error::new_loading(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_quoted() {
        let module = tw_script::Module { name: "a\"b".to_owned(), path: "/x\\y\n.js".to_owned() };
        let expected = "import m0 from \"/x\\\\y\\u000a.js\"; globalThis[\"a\\\"b\"] = m0;\n";
        assert_eq!(main_source(&[module]), expected);
    }
}
