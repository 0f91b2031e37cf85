//! The document of `status_page?format=json`.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::ParseError;
use super::snapshot::{Family, SlowRequest, Snapshot, Spans, Stall, Value, clean};

/// Reads it. Members that are missing or of another type are left out.
pub(super) fn parse(text: &str) -> Result<Snapshot, ParseError> {
    let json: Json = serde_json::from_str(text).map_err(|error| ParseError::Json(error.to_string()))?;
    Ok(Snapshot {
        now: json["now"].as_f64(),
        host: word(&json, "host"),
        stall_threshold: json["stall_threshold"].as_f64(),
        bounds: numbers(&json["bounds"]),
        stalls: list(&json["stalls"]).map(stall).collect(),
        slow_requests: json["slow_requests"].as_array().map(|all| all.iter().map(slow_request).collect()),
        mounts: members(&json["mounts"])
            .filter_map(|(device, place)| Some((clean(device), clean(place.as_str()?))))
            .collect(),
        families: members(&json["metrics"]).map(|(name, metric)| (clean(name), family(metric))).collect(),
    })
}

fn stall(json: &Json) -> Stall {
    Stall {
        worker: json["worker"].as_u64().unwrap_or_default(),
        turn: number(json, "turn"),
        cause: word(json, "cause"),
        by: word(json, "by"),
        operation: word(json, "operation"),
        client: word(json, "client"),
    }
}

fn slow_request(json: &Json) -> SlowRequest {
    SlowRequest {
        at: number(json, "at"),
        worker: json["worker"].as_u64().unwrap_or_default(),
        time: number(json, "time"),
        disk_wait: number(json, "disk_wait"),
        status: json["status"].as_u64().unwrap_or_default(),
        protocol: word(json, "protocol"),
        client: word(json, "client"),
        host: word(json, "host"),
        request: word(json, "request"),
    }
}

fn family(json: &Json) -> Family {
    let labels: Vec<_> = list(&json["labels"]).filter_map(Json::as_str).map(clean).collect();
    let mut samples = BTreeMap::new();
    for sample in list(&json["samples"]) {
        let values: Vec<_> = list(&sample[0]).filter_map(Json::as_str).map(clean).collect();
        if let Some(value) = value(&sample[1]).filter(|_| values.len() == labels.len()) {
            samples.insert(values, value);
        }
    }
    Family { labels, samples }
}

/// A number, or `[[counts up to each bound], sum in seconds, count]`.
fn value(json: &Json) -> Option<Value> {
    match json {
        Json::Number(number) => number.as_f64().map(Value::Number),
        Json::Array(_) => {
            let sum = json[1].as_f64()?;
            let count = json[2].as_f64()?;
            Some(Value::Spans(Spans { below: numbers(&json[0]), sum, count }))
        }
        _ => None,
    }
}

fn list(json: &Json) -> impl Iterator<Item = &Json> {
    json.as_array().into_iter().flatten()
}

fn members(json: &Json) -> impl Iterator<Item = (&String, &Json)> {
    json.as_object().into_iter().flatten()
}

fn numbers(json: &Json) -> Vec<f64> {
    list(json).filter_map(Json::as_f64).collect()
}

fn number(json: &Json, key: &str) -> f64 {
    json[key].as_f64().unwrap_or_default()
}

fn word(json: &Json, key: &str) -> String {
    json[key].as_str().map(clean).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read() {
        let text = r#"{"now":5.5,"host":"web","bounds":[0.1,1],"stalls":[{"worker":1,"turn":0.03,"cause":"kernel","client":"::1"}],
            "slow_requests":[{"at":5,"time":1.5,"disk_wait":0.5,"status":200,"request":"GET /\u001b"}],"mounts":{"8:1":"/ (ext4)"},
            "metrics":{"a_total":{"kind":"counter","labels":["x"],"samples":[[["1"],7],[["2"],8]]},
            "b_seconds":{"kind":"histogram","labels":[],"samples":[[[],[[1,2],0.5,3]]]}}}"#;
        let snapshot = parse(text).unwrap();
        assert_eq!((snapshot.now, &*snapshot.host), (Some(5.5), "web"));
        assert_eq!((snapshot.stalls[0].worker, &*snapshot.stalls[0].cause), (1, "kernel"));
        let slow = snapshot.slow_requests.as_ref().unwrap();
        assert_eq!((slow[0].disk_wait, &*slow[0].request), (0.5, "GET /\u{fffd}"));
        assert_eq!(snapshot.number("a_total", &[("x", "2")]), Some(8.0));
        let spans = Spans { below: vec![1.0, 2.0], sum: 0.5, count: 3.0 };
        assert_eq!(snapshot.spans("b_seconds", &[]), Some(spans));
    }

    #[test]
    fn odd_values_are_left_out() {
        for text in [
            r#"{"now":"x","bounds":{},"stalls":[1,null],"slow_requests":[[]],"mounts":[1],"metrics":{"a":1,"b":{"samples":7}}}"#,
            r#"{"metrics":{"a":{"labels":["x"],"samples":[[["1","2"],3],[[],4],[7],[["1"],"x"],[["1"],[1]],[["1"],[[],null,3]]]}}}"#,
        ] {
            let snapshot = parse(text).unwrap();
            assert_eq!(snapshot.number("a", &[]), None);
            assert_eq!(snapshot.spans("a", &[]), None);
        }
    }
}
