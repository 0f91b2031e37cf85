//! Workflows and the other files of YAML: they can be read, workflows have no more rights than they use, run only code that a commit
//! names, and name what exists.

use super::Finding;
use super::tree::{File, Tree};
use super::yaml::{self, Line};

/// Directory of workflows.
const WORKFLOWS: &str = ".github/workflows/";

/// Directories whose files workflows name.
const NAMED: &[&str] = &[".ci/", "crates/", "docs/", "packaging/", "xtask/"];

/// Texts that no workflow has, and why.
const BANNED: &[(&str, &str)] = &[
    ("secrets.", "the token of the run suffices"),
    ("pull_request_target", "code of strangers would run with the rights of the repository"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.others.iter().filter(|file| is_yaml(&file.path)) {
        let (lines, errors) = yaml::read(&file.path, &file.text);
        findings.extend(errors);
        if file.path.starts_with(WORKFLOWS) {
            findings.extend(of_workflow(file, &lines));
            findings.extend(missing_files(tree, file));
        }
    }
    findings
}

/// Returns `true` for files of YAML. Templates of the chart become YAML only when Helm has filled them in.
fn is_yaml(path: &str) -> bool {
    (path.ends_with(".yml") || path.ends_with(".yaml")) && !path.contains("/templates/")
}

/// Rights, time limits, and the code that a workflow runs.
fn of_workflow(file: &File, lines: &[Line<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut complain = |line, text: &str| findings.push(Finding::error(&file.path, line, text));
    if !lines.iter().any(|line| line.depth == 0 && line.key == "permissions") {
        complain(0, "no permissions: the default gives more than a workflow uses");
    }
    for line in jobs(lines) {
        let body = lines.iter().skip_while(|other| other.number <= line.number);
        if !body.take_while(|other| other.depth > line.depth).any(|other| other.key == "timeout-minutes") {
            complain(line.number, "no timeout-minutes: a job that hangs costs six hours");
        }
    }
    for line in lines.iter().filter(|line| line.key == "uses") {
        let commit = line.value.rsplit_once('@').map_or("", |(_, commit)| commit);
        if commit.len() != 40 || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            complain(line.number, "an action is named by its commit: a tag can be moved");
        } else if !line.comment.starts_with('v') {
            complain(line.number, "the version of an action is in the comment behind its commit");
        }
    }
    for (index, line) in file.text.lines().enumerate() {
        for (text, reason) in BANNED.iter().filter(|(text, _)| line.contains(text)) {
            complain(index + 1, &format!("{text}: {reason}"));
        }
    }
    findings
}

/// Lines that name a job.
fn jobs<'a>(lines: &'a [Line<'a>]) -> impl Iterator<Item = &'a Line<'a>> {
    let below = lines.iter().skip_while(|line| !(line.depth == 0 && line.key == "jobs")).skip(1);
    below.take_while(|line| line.depth > 0).filter(|line| line.depth == 2)
}

/// Files and directories of the repository that a workflow names and that do not exist.
fn missing_files(tree: &Tree, file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let all = || tree.files.iter().chain(&tree.others);
    for (index, line) in file.text.lines().enumerate() {
        for word in line.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '=' | '`')) {
            let word = word.trim_end_matches(['.', ',', ';', ':']);
            if !NAMED.iter().any(|directory| word.starts_with(directory)) {
                continue;
            }
            let below = format!("{}/", word.trim_end_matches('/'));
            if !all().any(|other| other.path == word || other.path.starts_with(&below)) {
                findings.push(Finding::error(&file.path, index + 1, format!("no such file: {word}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn workflows_are_limited_and_pinned() {
        let good = format!(
            "on: push\npermissions:\n  contents: read\njobs:\n  a:\n    timeout-minutes: 5\n    steps:\n      - uses: b/c@{COMMIT} # v1\n"
        );
        for (from, to, expected) in [
            ("", "", vec![]),
            ("permissions:\n  contents: read\n", "", vec![0]),
            ("timeout-minutes: 5", "runs-on: d", vec![5]),
            (COMMIT, "v1", vec![8]),
            (" # v1", "", vec![8]),
            ("on: push", "on: pull_request_target", vec![1]),
            ("# v1", "# v1 ${{ secrets.KEY }}", vec![8]),
            ("on: push", "on: push\non: push", vec![2]),
            ("# v1", "# v1\n      - run: bash .ci/run", vec![]),
            ("# v1", "# v1\n      - run: bash .ci/walk", vec![9]),
            ("# v1", "# v1\n      - run: ls docs", vec![]),
            ("# v1", "# v1\n      - run: ls packaging/none", vec![9]),
        ] {
            let mut tree =
                Tree::of(&[(".ci/run", ""), (".github/workflows/a.yml", &good.replacen(from, to, 1))]);
            tree.others = std::mem::take(&mut tree.files);
            let findings = check(&tree);
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), expected, "{to}");
        }
    }

    #[test]
    fn templates_are_no_yaml() {
        assert!(is_yaml(".github/dependabot.yml") && is_yaml("packaging/helm/a/values.yaml"));
        assert!(!is_yaml("packaging/helm/a/templates/a.yaml") && !is_yaml("a.rs"));
    }
}
