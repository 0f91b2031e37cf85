//! Directives by module.

use std::fmt::Write as _;

use tw_conf::{DirectiveInfo, NginxDirective, context_words, nginx_directives};

use crate::MODULES;

/// A module and its directives.
pub struct Chapter {
    /// Name of the module.
    pub title: &'static str,
    /// Directives, sorted by name.
    pub directives: Vec<DirectiveInfo>,
}

/// Every directive in the order of the modules, each module once.
pub fn chapters() -> Vec<Chapter> {
    let mut chapters = Vec::new();
    for block in tw_app::structure_directives() {
        add(&mut chapters, "blocks", block);
    }
    let all = tw_app::all_directives(MODULES);
    for (title, directive) in all.into_iter().filter(|(title, _)| *title != tw_modules::TRAP) {
        add(&mut chapters, title, directive);
    }
    for directive in tw_modules::oidc_provider_directives() {
        add(&mut chapters, "auth_oidc", directive);
    }
    chapters.retain(|chapter| !chapter.directives.is_empty());
    for chapter in &mut chapters {
        chapter.directives.sort_by_key(|directive| directive.name);
    }
    chapters
}

/// Adds a directive to its chapter. One that several protocols have stands there once.
fn add(chapters: &mut Vec<Chapter>, title: &'static str, directive: DirectiveInfo) {
    let at = chapters.iter().position(|chapter| chapter.title == title).unwrap_or_else(|| {
        chapters.push(Chapter { title, directives: Vec::new() });
        chapters.len() - 1
    });
    let chapter = &mut chapters[at];
    match chapter.directives.iter_mut().find(|directive_info| directive_info.name == directive.name) {
        // Directives of one module with the same name are listed once, with the contexts of all of them.
        Some(directive_info) => directive_info.contexts |= directive.contexts,
        None => chapter.directives.push(directive),
    }
}

/// nginx's own record of a directive.
pub fn in_nginx(directive: &DirectiveInfo) -> Option<NginxDirective> {
    nginx_directives()
        .find(|candidate| candidate.name == directive.name && candidate.contexts & directive.contexts != 0)
}

/// Lines with syntax, default, contexts and first version, as nginx's documentation has them.
pub fn facts(directive: &DirectiveInfo) -> String {
    let DirectiveInfo { name, syntax, contexts, default, since, .. } = *directive;
    let end = if syntax.ends_with('}') { "" } else { ";" };
    let gap = if syntax.is_empty() { "" } else { " " };
    let mut lines = format!("Syntax:   {name}{gap}{syntax}{end}\n");
    if let Some(default) = default {
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "Default:  {name} {default};");
    }
    let _ = writeln!(lines, "Context:  {}", context_words(contexts));
    let version = match (since, in_nginx(directive)) {
        ("", Some(_)) => return lines,
        ("", None) => "Tailwater 0.1".to_owned(),
        (since, Some(_)) if !since.starts_with("Tailwater") => format!("nginx {since}"),
        (since, _) => since.to_owned(),
    };
    let _ = writeln!(lines, "Since:    {version}");
    lines
}
