//! Limits by what they protect.

use tw_base::Limit;

/// Sections of the server itself, in their order; the others are modules.
const SECTIONS: [&str; 18] = [
    "connections and loops",
    "HTTP/3",
    "HTTP/2 and HTTP/3",
    "HTTP/2",
    "request headers",
    "upstream response headers",
    "upstream servers",
    "DNS",
    "TLS",
    "caches",
    "fleet",
    "request bodies, responses and keep-alive",
    "request processing",
    "disks and files",
    "logs and the configuration",
    "metrics and the status page",
    "sessions of stream",
    "sessions of mail",
];

/// A section and its limits.
pub struct LimitChapter {
    /// Name of the section, or of the module.
    pub title: &'static str,
    /// Limits in the order of the crates.
    pub limits: Vec<Limit>,
}

/// Every limit: those of the server by section, then those of the modules, each module once.
pub fn chapters() -> Vec<LimitChapter> {
    let server = SECTIONS.map(|title| {
        let limits = of_server().filter(|limit| limit.section == title).collect();
        LimitChapter { title, limits }
    });
    let mut chapters = Vec::from(server);
    for module in tw_server::load::modules(tw_modules::MODULES) {
        add(&mut chapters, module.name, module.limits());
    }
    for module in tw_stream::load::modules(tw_modules::STREAM_MODULES) {
        add(&mut chapters, module.name, module.limits());
    }
    for module in tw_mail::load::modules(tw_modules::MAIL_MODULES) {
        add(&mut chapters, module.name, module.limits());
    }
    chapters
}

/// Limits outside of modules.
fn of_server() -> impl Iterator<Item = Limit> {
    let crates = [tw_server::LIMITS, tw_stream::LIMITS, tw_mail::LIMITS];
    crates.into_iter().flatten().copied()
}

/// Adds the limits of a module. Modules of several protocols that have one name have the same limits.
fn add(chapters: &mut Vec<LimitChapter>, title: &'static str, limits: &[Limit]) {
    if !limits.is_empty() && chapters.iter().all(|chapter| chapter.title != title) {
        chapters.push(LimitChapter { title, limits: limits.to_vec() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_of_the_server_has_a_section() {
        for limit in of_server() {
            assert!(SECTIONS.contains(&limit.section), "{:?}: {}", limit.section, limit.what());
        }
    }

    #[test]
    fn every_section_has_limits() {
        for chapter in chapters() {
            assert!(!chapter.limits.is_empty(), "{}", chapter.title);
        }
    }
}
