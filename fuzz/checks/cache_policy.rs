//! Invariants for any fields of a request and a response: no panic, a fresh response was fresh before, no
//! connection-specific field is stored, and everything written can be sent. The input is lines, `Name: value`: those
//! of the request, an empty one, those of the response.

use tw_cache::Key;
use tw_cache::policy::{
    CacheStatus, ForwardReason, IgnoredFields, Lifetime, Response, Reuse, Rules, StoreSettings, UriOrigin,
    Window, current_age, describe_variant, exclude, freshen, invalidated, may_store, may_use, merge, variant,
    vary, wants_only_stored,
};
use tw_http::{Fields, HeaderName, Method, Name};

/// Sun, 06 Nov 1994 08:49:37 GMT
const NOW: i64 = 784_111_777;

pub(crate) fn check(data: &[u8]) {
    let mut lines = data.split(|&byte| byte == b'\n');
    let request = fields(&mut lines);
    let stored = fields(&mut lines);
    let targeted = Rules { targeted: vec!["CDN-Cache-Control".into()], ..Rules::RFC9111 };
    for rules in [Rules::NGINX, Rules::RFC9111, targeted] {
        for ignored in
            [IgnoredFields::NONE, IgnoredFields::CACHE_CONTROL | IgnoredFields::VARY, IgnoredFields::EXPIRES]
        {
            let terms = StoreSettings { valid_s: Some(9), ignored };
            for terms in [StoreSettings { valid_s: None, ..terms }, terms] {
                one(&request, &stored, &rules, &terms);
            }
        }
    }
}

/// The lines up to an empty one.
fn fields<'a>(lines: &mut impl Iterator<Item = &'a [u8]>) -> Fields {
    let mut fields = Fields::new();
    for line in lines.take_while(|line| !line.is_empty()) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        fields.append_copy(Name::Copy(&line[..colon]), line[colon + 1..].trim_ascii());
    }
    fields
}

fn one(request: &Fields, stored: &Fields, rules: &Rules, terms: &StoreSettings) {
    let request_line = (Method::Get, request);
    for request_time in [NOW, NOW - 5, i64::MIN] {
        let response = Response { status: 200, fields: stored, request_time, is_slice: false };
        match may_store(&request_line, &response, NOW, rules, terms) {
            Ok(lifetime) => uses(&lifetime, request, rules),
            Err(why) => assert!(!why.word().is_empty()),
        }
    }
    let mut kept = stored.clone();
    exclude(&mut kept, rules, terms.ignored);
    assert!(kept.len() <= stored.len());
    assert!(
        ![HeaderName::Connection, HeaderName::KeepAlive, HeaderName::Upgrade]
            .iter()
            .any(|&known| kept.has(known))
    );
    merge(&mut kept, request, rules);
    let response = Response { status: 200, fields: &kept, request_time: NOW, is_slice: false };
    if let Ok(lifetime) = freshen(&request_line, &response, request, NOW, rules, terms) {
        uses(&lifetime, request, rules);
    }

    if let Ok(text) = vary(stored, rules, terms.ignored) {
        let mut described = Vec::new();
        describe_variant(&text, &request_line, rules, &mut described);
        assert_eq!(variant(Key::of(b"/"), &text, &request_line, rules), Key::of(b"/").variant(&described));
    }
    let site = UriOrigin { is_https: false, host: b"example.com", port: None };
    invalidated(Method::Post, 201, &site, b"/a/b?c", stored, rules, &mut |path| {
        assert!(path.starts_with(b"/") && !path.contains(&b'#'));
    });
    let mut out = Vec::new();
    let key = stored.get_known(HeaderName::ETag);
    CacheStatus { cache: "a b", forward: Some(ForwardReason::Miss), key, ..CacheStatus::default() }
        .write(&mut out);
    assert!(out.iter().all(|byte| matches!(byte, b' '..=b'~')));
}

fn uses(lifetime: &Lifetime, request: &Fields, rules: &Rules) {
    let nothing = Fields::new();
    let mut is_over = false;
    let mut age = 0;
    for after in [0, 1, 10, 100, 86_400, 1 << 40, i64::MAX - NOW] {
        let now = NOW + after;
        assert!(current_age(lifetime, now) >= age);
        age = current_age(lifetime, now);
        let used = may_use(lifetime, &(Method::Get, &nothing), now, rules);
        let is_fresh = matches!(used, Reuse::Fresh { .. });
        assert!(!(is_fresh && is_over), "fresh again: {lifetime:?}");
        is_over = !is_fresh;
        // No request makes a response fresh that is not, or opens what is forbidden.
        match may_use(lifetime, &(Method::Get, request), now, rules) {
            Reuse::Fresh { .. } => assert!(is_fresh),
            Reuse::Accepted { .. } => {
                assert!(matches!(used, Reuse::Stale { if_error, .. } if if_error != Window::Forbidden))
            }
            Reuse::Unsatisfiable => assert!(wants_only_stored(&(Method::Get, request), rules)),
            Reuse::Stale { .. } | Reuse::Validate { .. } => {}
        }
    }
}
