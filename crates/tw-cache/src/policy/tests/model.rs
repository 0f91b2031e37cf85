//! Literal model of RFC 9111's freshness, with maps and floating-point seconds and no concern for speed, compared
//! with the functions of this module for thousands of generated responses.

use tw_testkit::Random;

use super::*;

/// Lower-case names and unquoted arguments of the directives, the first of each name; none is quoted with a comma
/// here.
fn directives(fields: &Fields) -> Vec<(String, Option<String>)> {
    let lines: Vec<String> =
        fields.get_all(b"cache-control").map(|line| String::from_utf8(line.to_vec()).unwrap()).collect();
    let mut all: Vec<(String, Option<String>)> = Vec::new();
    for member in lines.join(",").split(',').map(str::trim).filter(|member| !member.is_empty()) {
        let (name, argument) = match member.split_once('=') {
            Some((name, argument)) => (name, Some(argument.trim_matches('"').to_owned())),
            None => (member, None),
        };
        let name = name.to_lowercase();
        if all.iter().all(|(one, _)| *one != name) {
            all.push((name, argument));
        }
    }
    all
}

struct Model {
    says: Vec<(String, Option<String>)>,
    age_value: i128,
    date_value: i128,
    request_time: i128,
    response_time: i128,
    expires: Option<Option<i128>>,
    last_modified: Option<i128>,
}

impl Model {
    fn of(fields: &Fields, request_time: i64, response_time: i64) -> Self {
        let date =
            |name: &[u8]| fields.get(name).map(|value| tw_http::date::parse_gmt(value).map(i128::from));
        let age = fields.get(b"age").and_then(|age| str::from_utf8(age).ok()?.parse::<u64>().ok());
        Self {
            says: directives(fields),
            age_value: i128::from(age.unwrap_or(0)).min(1 << 31),
            date_value: date(b"date").flatten().unwrap_or(i128::from(response_time)),
            request_time: request_time.into(),
            response_time: response_time.into(),
            expires: date(b"expires"),
            last_modified: date(b"last-modified").flatten(),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.says.iter().any(|(one, _)| one == name)
    }

    fn seconds(&self, name: &str) -> Option<i128> {
        let (_, argument) = self.says.iter().find(|(one, _)| one == name)?;
        let argument = argument.as_deref().unwrap_or("");
        let is_number = !argument.is_empty() && argument.bytes().all(|byte| byte.is_ascii_digit());
        Some(if is_number { argument.parse().map_or(1 << 31, |number: i128| number.min(1 << 31)) } else { 0 })
    }

    /// Section 4.2.1, in its order.
    fn freshness_lifetime(&self) -> Option<i128> {
        if let Some(seconds) = self.seconds("s-maxage") {
            return Some(seconds);
        }
        if let Some(seconds) = self.seconds("max-age") {
            return Some(seconds);
        }
        if let Some(expires) = self.expires {
            return Some(expires.map_or(0, |expires| (expires - self.date_value).max(0)));
        }
        let guess = (self.date_value - self.last_modified?) / 10;
        (guess > 0).then_some(guess.min(86_400))
    }

    /// Section 4.2.3.
    fn current_age(&self, now: i64) -> i128 {
        let apparent_age = (self.response_time - self.date_value).max(0);
        let response_delay = self.response_time - self.request_time;
        let corrected_age_value = self.age_value + response_delay;
        let corrected_initial_age = apparent_age.max(corrected_age_value);
        let resident_time = i128::from(now) - self.response_time;
        corrected_initial_age + resident_time
    }

    /// Section 4.2.
    fn is_fresh(&self, now: i64) -> bool {
        self.freshness_lifetime().is_some_and(|lifetime| lifetime > self.current_age(now))
    }

    /// Section 4.2.4.
    fn may_be_stale(&self) -> bool {
        !["must-revalidate", "proxy-revalidate", "s-maxage", "no-cache"].iter().any(|name| self.has(name))
    }
}

fn number(random: &mut Random) -> String {
    match random.below(12) {
        0 => "x".to_owned(),
        1 => String::new(),
        2 => "99999999999".to_owned(),
        3 => "\"30\"".to_owned(),
        _ => random.below(120).to_string(),
    }
}

fn when(random: &mut Random) -> String {
    if random.happens(8) {
        return random.one_of(&["0", "Thu, 31 Feb 1994 00:00:00 GMT", "-1"]).to_owned();
    }
    let time = NOW + random.below(4000) as i64 - 2000;
    String::from_utf8(tw_http::date::format(time).to_vec()).unwrap()
}

fn response(random: &mut Random) -> Vec<String> {
    let mut lines = vec!["ETag: \"v\"".to_owned()];
    for _ in 0..random.below(6) {
        lines.push(match random.below(8) {
            0 => format!("Date: {}", when(random)),
            1 => format!("Expires: {}", when(random)),
            2 => format!("Last-Modified: {}", when(random)),
            3 => format!("Age: {}", random.one_of(&["0", "5", "60", "x", "99999999999"])),
            _ => {
                let words = ["max-age", "s-maxage", "stale-if-error", "Max-Age"];
                let plain = ["must-revalidate", "proxy-revalidate", "public", "immutable", "x", "no-cache"];
                let word = random.one_of(&words);
                let other = random.one_of(&plain);
                match random.below(3) {
                    0 => format!("Cache-Control: {word}={}", number(random)),
                    1 => format!("cache-control: {other}, {word}={}", number(random)),
                    _ => format!("Cache-Control:,{word}={} , {other}", number(random)),
                }
            }
        });
    }
    lines
}

#[test]
fn freshness_equals_the_model() {
    let mut random = Random::new(9111);
    let mut fresh = 0;
    let mut stale = 0;
    let mut refused = 0;
    let nothing = Fields::new();
    for _ in 0..20_000 {
        let lines = response(&mut random);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let all = fields(&lines);
        let request_time = NOW - random.below(20) as i64;
        let model = Model::of(&all, request_time, NOW);
        let response = Response { status: 200, fields: &all, request_time, is_slice: false };
        let stored =
            may_store(&(Method::Get, &nothing), &response, NOW, &Rules::RFC9111, &StoreSettings::default());
        let Ok(stored) = stored else {
            // All responses here have a validator, so only those without any freshness information are refused.
            assert_eq!(stored, Err(NoStoreReason::NoValidity), "{lines:?}");
            assert!(model.freshness_lifetime().is_none() && !model.has("no-cache"), "{lines:?}");
            refused += 1;
            continue;
        };
        let now = NOW + random.below(150) as i64;
        let expected_age = model.current_age(now).min(i128::from(u32::MAX));
        let bounded = (1 << 31) + i128::from(now - NOW);
        assert_eq!(i128::from(current_age(&stored, now)), expected_age.min(bounded), "{lines:?}");
        match may_use(&stored, &(Method::Get, &nothing), now, &Rules::RFC9111) {
            Reuse::Fresh { .. } => {
                assert!(model.is_fresh(now) && !model.has("no-cache"), "{lines:?} {now}");
                fresh += 1;
            }
            Reuse::Validate { because, .. } => {
                assert!(because == ValidateReason::NoCache && model.has("no-cache"), "{lines:?} {now}");
            }
            Reuse::Stale { if_error, .. } => {
                assert!(!model.is_fresh(now) && !model.has("no-cache"), "{lines:?} {now}");
                assert_eq!(if_error == Window::Forbidden, !model.may_be_stale(), "{lines:?} {now}");
                let lifetime = model.freshness_lifetime().unwrap_or(0);
                let late = model.current_age(now) - lifetime;
                if if_error != Window::Forbidden && model.age_value < 1 << 31 {
                    let window = model.seconds("stale-if-error").unwrap_or(0);
                    let is_open = window > 0 && late <= window;
                    assert_eq!(if_error == Window::Open, is_open, "{lines:?} {now}");
                }
                stale += 1;
            }
            other => panic!("{other:?} without directives of a request: {lines:?}"),
        }
    }
    assert!(fresh > 1000 && stale > 1000 && refused > 1000, "{fresh} {stale} {refused}");
}
