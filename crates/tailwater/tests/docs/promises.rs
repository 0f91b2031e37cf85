//! `docs/promise.md`: each promise has what is promised, how it is enforced, and how you check it with commands.

use std::fs;
use std::path::Path;

/// Sections of the page that are about no promise of their own.
const OTHERS: &[&str] = &["A server to check with"];
/// Parts of each promise, in this order.
const PARTS: [&str; 3] = ["What is promised", "How it is enforced", "How you check it"];

#[test]
fn every_promise_has_its_three_parts() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/promise.md");
    let text = fs::read_to_string(file).unwrap();
    let promises: Vec<_> = text
        .split("\n## ")
        .skip(1)
        .filter(|section| !OTHERS.iter().any(|name| section.starts_with(name)))
        .collect();
    assert!(promises.len() >= 10, "{}", promises.len());
    for promise in promises {
        let name = promise.lines().next().unwrap_or_default();
        let mut parts = promise.split("\n### ").skip(1);
        let bodies = PARTS.map(|title| {
            let part = parts.next().and_then(|part| part.strip_prefix(title));
            part.unwrap_or_else(|| panic!("{name}: no part \"{title}\" where it belongs"))
        });
        assert!(bodies[0].lines().any(|line| line.starts_with("- ")), "{name}: {} has no list", PARTS[0]);
        assert!(bodies[1].contains("]("), "{name}: {} links to nothing", PARTS[1]);
        // A command, and the line after it, which is output or another command.
        let commands = bodies[2].split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
        assert!(commands.clone().count() > 0, "{name}: {} has no commands", PARTS[2]);
        for command in commands {
            assert!(command.starts_with("$ ") && command.lines().count() > 1, "{name}: {command}");
        }
    }
}
