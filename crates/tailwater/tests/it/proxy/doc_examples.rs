//! Configuration examples of the pages about proxying.

use std::fs;
use std::path::Path;
use std::process::Command;

use tw_testkit::TempDir;

/// The pages, and how many examples each has at least.
const PAGES: [(&str, usize); 3] = [("reverse-proxy.md", 8), ("load-balancing.md", 8), ("api.md", 1)];

#[test]
fn every_example_passes_the_configuration_test() {
    for (page, count) in PAGES {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
        let text = fs::read_to_string(file).unwrap();
        let examples: Vec<_> =
            text.split("```nginx\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(examples.len() >= count, "{page}: {}", examples.len());
        for example in examples {
            let dir = TempDir::new("proxying").unwrap();
            fs::create_dir(dir.join("logs")).unwrap();
            let example = example.replace("/var/cache/", "");
            let whole = match example.starts_with("stream {") {
                true => format!("events {{ }} {example}"),
                false => format!("events {{ }} http {{ {example} }}"),
            };
            let conf = dir.write("nginx.conf", whole).unwrap();
            let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
            let output = command.arg("-tqp").arg(dir.path()).arg("-c").arg(conf).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains("[warn]"), "{page}: {example}{said}");
        }
    }
}
