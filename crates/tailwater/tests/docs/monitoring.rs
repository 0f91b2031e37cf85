//! Dashboards and alert rules: every metric and label that they name exists.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tw_core::metrics::{Metric, MetricKind, PREFIX};

use crate::MODULES;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// Series of all metrics, with their labels.
fn series() -> HashMap<String, Vec<&'static str>> {
    let mut series = HashMap::new();
    for Metric { name, kind, labels, .. } in tw_app::all_metrics(MODULES).all() {
        let name = format!("{PREFIX}{name}");
        let mut labels = labels.to_vec();
        // Prometheus adds these when it scrapes.
        labels.extend(["instance", "job"]);
        if *kind == MetricKind::Histogram {
            series.insert(format!("{name}_sum"), labels.clone());
            series.insert(format!("{name}_count"), labels.clone());
            labels.push("le");
            series.insert(format!("{name}_bucket"), labels);
        } else {
            series.insert(name, labels);
        }
    }
    series
}

/// Expressions of a dashboard, or of all of them below a value.
fn expressions(value: &Value, results: &mut Vec<String>) {
    match value {
        Value::Array(all) => all.iter().for_each(|value| expressions(value, results)),
        Value::Object(all) => {
            for (key, value) in all {
                match value {
                    Value::String(text) if key == "expr" || key == "definition" => results.push(text.clone()),
                    _ => expressions(value, results),
                }
            }
        }
        _ => {}
    }
}

/// Names in `text` that begin with the prefix of the metrics, each with the labels of its selector.
fn names(text: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut results = Vec::new();
    for (at, _) in text.match_indices(PREFIX) {
        if text[..at].ends_with(is_name) {
            continue;
        }
        let name: String = text[at..].chars().take_while(|c| is_name(*c)).collect();
        let selector = text[at + name.len()..].strip_prefix('{').and_then(|rest| rest.split('}').next());
        let labels =
            selector.unwrap_or_default().split("\",").filter_map(|part| part.split(['=', '!']).next());
        let labels = labels.map(|label| label.trim().to_owned()).filter(|label| !label.is_empty());
        results.push((name, labels.collect()));
    }
    results
}

fn assert_known(file: &str, text: &str) {
    let series = series();
    let used = names(text);
    assert!(!used.is_empty(), "{file}: no metric in {text}");
    for (name, labels) in used {
        let known_names = series.get(&name).unwrap_or_else(|| panic!("{file}: there is no metric {name}"));
        for label in labels {
            assert!(known_names.contains(&label.as_str()), "{file}: {name} has no label {label}");
        }
    }
}

#[test]
fn dashboards_name_metrics_that_exist() {
    let mut count = 0;
    for entry in fs::read_dir(packaging().join("grafana")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let board: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let uid = board["uid"].as_str().unwrap();
        assert_eq!(format!("{uid}.json"), file);
        let mut results = Vec::new();
        expressions(&board, &mut results);
        assert!(results.len() > 10, "{file}");
        results.iter().for_each(|text| assert_known(&file, text));
        count += 1;
    }
    assert_eq!(count, 4);
}

#[test]
fn alerts_name_metrics_that_exist_and_have_a_runbook() {
    let file = "prometheus/alerts.yml";
    let text = fs::read_to_string(packaging().join(file)).unwrap();
    let rules: Vec<&str> = text.split("      - alert: ").skip(1).collect();
    assert!(rules.len() > 10);
    for rule in rules {
        let name = rule.lines().next().unwrap();
        assert!(name.starts_with("Tailwater"), "{name}");
        let expression = rule.split("expr:").nth(1).unwrap().split("        labels:").next().unwrap();
        assert_known(name, expression);
        assert!(rule.contains("          summary: ") && rule.contains("          runbook: "), "{name}");
    }
}
