//! Variables by module.

use tw_conf::NginxVariables;
use tw_core::vars::{VarDef, VarKind};

/// A variable of any protocol.
pub struct Variable {
    /// Name without `$`, or the prefix of a family.
    pub name: &'static str,
    /// True if all names with this prefix are variables.
    pub is_family: bool,
    /// True if `set` and similar directives change it.
    pub is_settable: bool,
    /// Meaning, in a sentence.
    pub doc: &'static str,
}

impl Variable {
    fn of<S>(def: &'static VarDef<S>) -> Self {
        let is_family = matches!(def.get, VarKind::Family(_));
        let mut changeable = NginxVariables::HTTP.changeable().chain(NginxVariables::STREAM.changeable());
        let is_settable = def.assign.is_some() || changeable.any(|name| name == def.name);
        Self { name: def.name, is_family, is_settable, doc: def.doc }
    }
}

/// A module and its variables.
pub struct VariableChapter {
    /// Name of the module.
    pub title: &'static str,
    /// Variables, sorted by name.
    pub variables: Vec<Variable>,
}

/// Every variable in the order of the modules, each module once.
pub fn chapters() -> Vec<VariableChapter> {
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
    chapters.retain(|chapter| !chapter.variables.is_empty());
    for chapter in &mut chapters {
        chapter.variables.sort_by_key(|variable| variable.name);
    }
    chapters
}

/// Adds variables to a chapter. One that several protocols have stands there once.
fn add(chapters: &mut Vec<VariableChapter>, title: &'static str, variables: impl Iterator<Item = Variable>) {
    let at = chapters.iter().position(|chapter| chapter.title == title).unwrap_or_else(|| {
        chapters.push(VariableChapter { title, variables: Vec::new() });
        chapters.len() - 1
    });
    for variable in variables {
        let list = &mut chapters[at].variables;
        if list.iter().all(|known_variable| known_variable.name != variable.name) {
            list.push(variable);
        }
    }
}
