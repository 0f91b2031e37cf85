//! Configurations in documents: `tailwater -t` accepts each of them without a warning.

use std::fs;
use std::path::Path;
use std::process::Command;

use tw_testkit::TempDir;

/// Documents whose configurations need no file besides themselves.
const DOCUMENTS: &[&str] =
    &["README.md", "docs/quick-start.md", "docs/running-in-production.md", "docs/static-sites.md"];

/// Beginning of a block of configuration.
pub(crate) const FENCE: &str = "```nginx\n";

#[test]
fn configurations_in_documents_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = TempDir::new("examples").unwrap();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let blocks: Vec<&str> =
            text.split(FENCE).skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
        assert!(!blocks.is_empty(), "{document}");
        for block in blocks {
            let conf = dir.write("nginx.conf", whole(block)).unwrap();
            let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
            let output = command.arg("-tqp").arg(dir.path()).arg("-c").arg(conf).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{document}:\n{block}{said}");
        }
    }
}

/// A block as a whole configuration: it is one, or has directives of the main context, or belongs into `http`.
fn whole(block: &str) -> String {
    if block.contains("http {") {
        return block.to_owned();
    }
    if ["pid ", "worker_rlimit_nofile ", "memory_budget "]
        .iter()
        .any(|directive| block.starts_with(directive))
    {
        let events = if block.contains("events {") { "" } else { "events { }" };
        return format!("{block} {events}");
    }
    format!("events {{ }} http {{ {block} }}")
}
