//! Storage and reuse by RFC 9111 as a shared cache.

use super::*;

const DATE: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT";
const TAG: &str = "ETag: \"a\"";

fn seconds(lines: &[&str]) -> Result<i64, NoStoreReason> {
    stored(lines, &Rules::RFC9111, &StoreSettings::default()).map(|lifetime| lifetime.valid_until - NOW)
}

#[test]
fn lifetimes_sections_4_2_1_to_4_2_3() {
    let table: &[(Lines<'_>, Result<i64, NoStoreReason>)] = &[
        (&[], Err(NoStoreReason::NoValidity)),
        (&[DATE, TAG], Err(NoStoreReason::NoValidity)),
        (&["Cache-Control: max-age=60"], Ok(60)),
        (&["Cache-Control: max-age=\"60\""], Ok(60)),
        (&["Cache-Control: max-age=60, s-maxage=5"], Ok(5)),
        (&["Cache-Control: max-age=60", "Cache-Control: max-age=5"], Ok(60)),
        (&["Cache-Control: max-age=60", "Expires: 0"], Ok(60)),
        (&["Cache-Control: max-age=x"], Err(NoStoreReason::MaxAge)),
        (&["Cache-Control: max-age=x", TAG], Ok(0)),
        (&["Cache-Control: max-age=60", "Age: 20"], Ok(40)),
        (&["Cache-Control: max-age=60", "Age: 20, 3"], Ok(40)),
        (&["Cache-Control: max-age=60", "Age: x"], Ok(60)),
        (&["Cache-Control: max-age=60", "Age: 70"], Err(NoStoreReason::MaxAge)),
        (&["Cache-Control: max-age=60", "Age: 70", TAG], Ok(-10)),
        // ten seconds on the way, by the clock of the origin
        (&["Cache-Control: max-age=60", "Date: Sun, 06 Nov 1994 08:49:27 GMT"], Ok(50)),
        (&["Cache-Control: max-age=60", "Date: Sun, 06 Nov 1994 08:49:27 GMT", "Age: 30"], Ok(30)),
        (&["Cache-Control: max-age=60", "Date: Sun, 06 Nov 1994 08:59:27 GMT"], Ok(60)),
        (&["Cache-Control: max-age=60", "Date: yesterday"], Ok(60)),
        (&[DATE, "Expires: Sun, 06 Nov 1994 08:51:17 GMT"], Ok(100)),
        // The lifetime is the difference of both dates, whatever time it is here.
        (&["Date: Sun, 06 Nov 1994 09:49:37 GMT", "Expires: Sun, 06 Nov 1994 09:51:17 GMT"], Ok(100)),
        (&["Expires: Sun, 06 Nov 1994 08:51:17 GMT"], Ok(100)),
        (&[DATE, "Expires: 0"], Err(NoStoreReason::Expired)),
        (&[DATE, "Expires: Sun, 06 Nov 1994 08:51:17 UTC"], Err(NoStoreReason::Expired)),
        (&[DATE, "Expires: Sun, 06 Nov 1994 08:51:17 AEST"], Err(NoStoreReason::Expired)),
        (&[DATE, "Expires: Sunday, 06-Nov-94 08:51:17 EST"], Err(NoStoreReason::Expired)),
        (&[DATE, "Expires: Sun, 06 Nov 1994 08:51:17 gmt"], Ok(100)),
        (&[DATE, "Expires: Sun Nov  6 08:51:17 1994"], Ok(100)),
        (&[DATE, "Expires: 0", TAG], Ok(0)),
        // a guess: a tenth of 1000 seconds
        (&[DATE, "Last-Modified: Sun, 06 Nov 1994 08:32:57 GMT"], Ok(100)),
        (&[DATE, "Last-Modified: Sun, 06 Nov 1992 08:32:57 GMT"], Ok(86_400)),
        (&[DATE, "Last-Modified: Sun, 06 Nov 1995 08:32:57 GMT"], Err(NoStoreReason::NoValidity)),
    ];
    for (lines, expected) in table {
        assert_eq!(seconds(lines), *expected, "{lines:?}");
    }
    let day = StoreSettings { valid_s: Some(7), ..StoreSettings::default() };
    let valid = |lines| stored(lines, &Rules::RFC9111, &day).map(|lifetime| lifetime.valid_until - NOW);
    assert_eq!(valid(&[DATE, "Last-Modified: Sun, 06 Nov 1994 08:32:57 GMT"]), Ok(7));
    assert_eq!(valid(&["Cache-Control: max-age=60"]), Ok(60));
}

#[test]
fn storability_section_3() {
    let get = |status, request: &[&str], lines: &[&str]| {
        stored_as(status, request, lines, &Rules::RFC9111, &StoreSettings::default()).err()
    };
    let table: &[(u16, Lines<'_>, Lines<'_>, Option<NoStoreReason>)] = &[
        (200, &[], &["Cache-Control: max-age=60, no-store"], Some(NoStoreReason::NoStore)),
        (200, &[], &["Cache-Control: max-age=60, no-store, must-understand"], None),
        (299, &[], &["Cache-Control: max-age=60, must-understand"], Some(NoStoreReason::NotUnderstood)),
        (299, &[], &["Cache-Control: max-age=60"], None),
        (200, &[], &["Cache-Control: max-age=60, private"], Some(NoStoreReason::Private)),
        (200, &[], &["Cache-Control: max-age=60, private=\"X\""], None),
        (
            200,
            &["Cache-Control: no-store"],
            &["Cache-Control: max-age=60"],
            Some(NoStoreReason::RequestNoStore),
        ),
        (200, &["Authorization: x"], &["Cache-Control: max-age=60"], Some(NoStoreReason::Authorization)),
        (200, &["Authorization: x"], &["Cache-Control: max-age=60, public"], None),
        (200, &["Authorization: x"], &["Cache-Control: s-maxage=60"], None),
        (200, &["Authorization: x"], &["Cache-Control: max-age=60, must-revalidate"], None),
        (206, &[], &["Cache-Control: max-age=60"], Some(NoStoreReason::Partial)),
        (304, &[], &["Cache-Control: max-age=60"], Some(NoStoreReason::Status)),
        (103, &[], &["Cache-Control: max-age=60"], Some(NoStoreReason::Status)),
        (200, &[], &["Cache-Control: max-age=60", "Set-Cookie: a"], Some(NoStoreReason::SetCookie)),
        (200, &[], &["Cache-Control: max-age=60, public", "Set-Cookie: a"], Some(NoStoreReason::SetCookie)),
        (200, &[], &["Cache-Control: max-age=60, no-cache=\"Set-Cookie\"", "Set-Cookie: a"], None),
        (200, &[], &["Cache-Control: max-age=60", "Vary: Accept, *"], Some(NoStoreReason::VaryStar)),
        (200, &[], &["Cache-Control: no-cache"], Some(NoStoreReason::NoCache)),
        (200, &[], &["Cache-Control: no-cache", TAG], None),
        (404, &[], &["Cache-Control: no-cache", TAG], Some(NoStoreReason::NoCache)),
        (403, &[], &["Cache-Control: no-cache", TAG], Some(NoStoreReason::NoValidity)),
        (403, &[], &[DATE, "Last-Modified: Sun, 06 Nov 1994 08:32:57 GMT"], Some(NoStoreReason::NoValidity)),
        (404, &[], &[DATE, "Last-Modified: Sun, 06 Nov 1994 08:32:57 GMT"], None),
        (403, &[], &["Cache-Control: public", DATE, "Last-Modified: Sun, 06 Nov 1994 08:32:57 GMT"], None),
        (200, &[], &["X-Accel-Expires: 60"], Some(NoStoreReason::NoValidity)),
    ];
    for (status, request, lines, expected) in table {
        assert_eq!(get(*status, request, lines), *expected, "{status} {request:?} {lines:?}");
    }
    let nothing = Fields::new();
    let lines = fields(&["Cache-Control: max-age=60"]);
    let response = Response { status: 206, fields: &lines, request_time: NOW, is_slice: true };
    let stored =
        |method| may_store(&(method, &nothing), &response, NOW, &Rules::RFC9111, &StoreSettings::default());
    assert!(stored(Method::Get).is_ok());
    assert_eq!(stored(Method::Post), Err(NoStoreReason::Method));
}

#[test]
fn targeted_fields_rfc9213_section_2_2() {
    let rules = Rules {
        targeted: vec![
            Bytes::from_static(b"Tailwater-Cache-Control"),
            Bytes::from_static(b"CDN-Cache-Control"),
        ],
        ..Rules::RFC9111
    };
    let table: &[(Lines<'_>, Result<i64, NoStoreReason>)] = &[
        (&["Cache-Control: no-store", "CDN-Cache-Control: max-age=60"], Ok(60)),
        (&["Tailwater-Cache-Control: max-age=5", "CDN-Cache-Control: max-age=60"], Ok(5)),
        (&["Tailwater-Cache-Control: max-age=5,", "CDN-Cache-Control: max-age=60"], Ok(60)),
        (&["Cache-Control: max-age=7", "CDN-Cache-Control:"], Ok(7)),
        (&["Cache-Control: max-age=7", "CDN-Cache-Control: no-store"], Err(NoStoreReason::NoStore)),
        (
            &["Expires: Sun, 06 Nov 1994 08:51:17 GMT", "CDN-Cache-Control: public"],
            Err(NoStoreReason::NoValidity),
        ),
    ];
    for (lines, expected) in table {
        let got = stored(lines, &rules, &StoreSettings::default()).map(|lifetime| lifetime.valid_until - NOW);
        assert_eq!(got, *expected, "{lines:?}");
    }
}

#[test]
fn uses_sections_4_2_4_and_5_2() {
    let plain = Lifetime {
        responded: NOW,
        valid_until: NOW + 100,
        stale_while_revalidate_s: 5,
        stale_if_error_s: 7,
        initial_age_s: 10,
        duties: Duties::NONE,
    };
    let with = |duties| Lifetime { duties, ..plain };
    let never = Lifetime { stale_while_revalidate_s: 0, ..with(Duties::NEVER_STALE) };
    let fresh = |age| Reuse::Fresh { age };
    let stale = |age, while_revalidate, if_error| Reuse::Stale { age, while_revalidate, if_error };
    let validate = |age, because, if_error| Reuse::Validate { age, because, if_error };
    let open = Window::Open;
    let closed = Window::Closed;
    let forbidden = Window::Forbidden;
    let table: &[(Lifetime, &str, i64, Reuse)] = &[
        (plain, "", 0, fresh(10)),
        (plain, "", 99, fresh(109)),
        (plain, "", 100, stale(110, open, open)),
        (plain, "", 106, stale(116, closed, open)),
        (plain, "", 108, stale(118, closed, closed)),
        (plain, "", -50, fresh(10)),
        (never, "", 99, fresh(109)),
        (never, "", 100, stale(110, forbidden, forbidden)),
        (with(Duties::VALIDATE), "", 1, validate(11, ValidateReason::NoCache, forbidden)),
        (plain, "no-cache", 1, validate(11, ValidateReason::RequestNoCache, closed)),
        (plain, "no-cache", 101, validate(111, ValidateReason::RequestNoCache, open)),
        (plain, "max-age=11", 1, fresh(11)),
        (plain, "max-age=10", 1, validate(11, ValidateReason::RequestMaxAge, closed)),
        (with(Duties::IMMUTABLE), "max-age=0", 1, fresh(11)),
        (with(Duties::IMMUTABLE), "no-cache", 1, validate(11, ValidateReason::RequestNoCache, closed)),
        (plain, "min-fresh=99", 1, fresh(11)),
        (plain, "min-fresh=100", 1, validate(11, ValidateReason::RequestMinFresh, closed)),
        (plain, "max-stale=1", 101, Reuse::Accepted { age: 111 }),
        (plain, "max-stale", 1000, Reuse::Accepted { age: 1010 }),
        (plain, "max-stale=1", 102, stale(112, open, open)),
        (never, "max-stale", 101, stale(111, forbidden, forbidden)),
        (plain, "max-stale, max-age=110", 101, stale(111, forbidden, open)),
        (plain, "max-stale, min-fresh=1", 101, stale(111, forbidden, open)),
        (plain, "stale-if-error=20", 115, stale(125, closed, open)),
        (never, "stale-if-error=20", 115, stale(125, forbidden, forbidden)),
        (plain, "only-if-cached", 1, fresh(11)),
        (plain, "only-if-cached", 101, stale(111, open, open)),
        (plain, "only-if-cached", 107, Reuse::Unsatisfiable),
        (plain, "only-if-cached, max-stale", 107, Reuse::Accepted { age: 117 }),
        (plain, "only-if-cached, no-cache", 1, Reuse::Unsatisfiable),
    ];
    for (stored, directives, at, expected) in table {
        let lines = format!("Cache-Control: {directives}");
        let request = if directives.is_empty() { Fields::new() } else { fields(&[&lines]) };
        let got = may_use(stored, &(Method::Get, &request), NOW + at, &Rules::RFC9111);
        assert_eq!(got, *expected, "{directives:?} at {at}");
    }

    // Section 5.4.
    let pragma = |lines: &[&str]| may_use(&plain, &(Method::Get, &fields(lines)), NOW, &Rules::RFC9111);
    assert_eq!(pragma(&["Pragma: x, no-cache"]), validate(10, ValidateReason::RequestNoCache, closed));
    assert_eq!(pragma(&["Pragma: no-cache", "Cache-Control: max-age=60"]), fresh(10));
    assert_eq!(
        pragma(&["Cache-Control: x", "Cache-Control: max-age=5"]),
        validate(10, ValidateReason::RequestMaxAge, closed)
    );
    let only =
        |rules: &Rules| wants_only_stored(&(Method::Get, &fields(&["Cache-Control: only-if-cached"])), rules);
    assert!(only(&Rules::RFC9111) && !only(&Rules::NGINX));
    let nothing = |lines: Lines<'_>| wants_nothing_stored(&(Method::Get, &fields(lines)), &Rules::RFC9111);
    assert!(nothing(&["Cache-Control: max-age=0", "Cache-Control: No-Store"]));
    assert!(!nothing(&["Cache-Control: no-cache"]) && !nothing(&["X: no-store"]));
    assert!(!wants_nothing_stored(&(Method::Get, &fields(&["Cache-Control: no-store"])), &Rules::NGINX));
}

#[test]
fn duties_and_windows_section_5_2_2() {
    let got = |control: &str| {
        let line =
            format!("Cache-Control: max-age=60, stale-while-revalidate=5, stale-if-error=6, {control}");
        let lifetime = stored(&[&line, TAG], &Rules::RFC9111, &StoreSettings::default()).unwrap();
        (lifetime.duties, lifetime.stale_while_revalidate_s, lifetime.stale_if_error_s)
    };
    assert_eq!(got(""), (Duties::NONE, 5, 6));
    assert_eq!(got("immutable"), (Duties::IMMUTABLE, 5, 6));
    for control in ["must-revalidate", "proxy-revalidate", "s-maxage=9"] {
        assert_eq!(got(control), (Duties::NEVER_STALE, 0, 0), "{control}");
    }
    assert_eq!(got("no-cache"), (Duties::VALIDATE, 0, 0));
    assert_eq!(got("no-cache=\"x\""), (Duties::NONE, 5, 6));
}

#[test]
fn a_304_updates_fields_sections_3_2_and_4_3_4() {
    let mut stored = fields(&[
        "Date: Sun, 06 Nov 1994 07:49:37 GMT",
        "Age: 500",
        "content-length: 5",
        "Content-Type: text/plain",
        "X-A: 1",
        "x-a: 2",
        "Cache-Control: max-age=1",
        TAG,
    ]);
    let update = fields(&[
        DATE,
        "Connection: close, X-Hop",
        "X-Hop: 1",
        "Content-Length: 0",
        "Content-Encoding: gzip",
        "Set-Cookie: a",
        "Proxy-Authenticate: x",
        "X-A: 3",
        "X-A: 4",
        "Cache-Control: max-age=60",
    ]);
    merge(&mut stored, &update, &Rules::RFC9111);
    let merged: Vec<_> = stored
        .iter()
        .map(|(name, value)| format!("{}: {}", str::from_utf8(name).unwrap(), str::from_utf8(value).unwrap()))
        .collect();
    let expected = [
        "content-length: 5",
        "Content-Type: text/plain",
        TAG,
        DATE,
        "X-A: 3",
        "X-A: 4",
        "Cache-Control: max-age=60",
    ];
    assert_eq!(merged, expected);

    let nothing = Fields::new();
    let freshened = |stored: &Fields| {
        let stored = Response { status: 200, fields: stored, request_time: NOW, is_slice: false };
        freshen(&(Method::Get, &nothing), &stored, &update, NOW, &Rules::RFC9111, &StoreSettings::default())
    };
    let lifetime = freshened(&stored).unwrap();
    assert_eq!((lifetime.valid_until, lifetime.initial_age_s), (NOW + 60, 0));
    merge(&mut stored, &fields(&["Cache-Control: no-store"]), &Rules::RFC9111);
    assert_eq!(freshened(&stored), Err(NoStoreReason::NoStore));
}

#[test]
fn a_304_matches_by_etag_section_4_3_4() {
    for (stored, new_etag, expected) in [
        ("\"a\"", &["ETag: \"a\""][..], true),
        ("\"a\"", &[], true),
        ("\"a\"", &["ETag: \"b\""], false),
        ("\"a\"", &["ETag: W/\"b\""], true),
        ("", &["ETag: \"b\""], false),
        ("", &[], true),
    ] {
        let update = fields(new_etag);
        assert_eq!(is_about(stored.as_bytes(), &update, &Rules::RFC9111), expected, "{stored} {new_etag:?}");
        assert!(is_about(stored.as_bytes(), &update, &Rules::NGINX));
    }
}

#[test]
fn fields_that_are_left_out_section_3_1() {
    let lines = [
        "Connection: X-Hop, Cookie",
        "X-Hop: 1",
        "Keep-Alive: x",
        "Upgrade: x",
        "Proxy-Authenticate: x",
        "proxy-authentication-info: x",
        "Set-Cookie: a",
        "X-One: 1",
        "x-two: 2",
        "Cache-Control: no-cache=\"set-cookie\", private=\"X-Two\"",
    ];
    let remaining = |rules: &Rules, ignored| {
        let mut all = fields(&lines);
        exclude(&mut all, rules, ignored);
        all.iter().map(|(name, _)| String::from_utf8(name.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(remaining(&Rules::RFC9111, IgnoredFields::NONE), ["X-One", "Cache-Control"]);
    let ignored = remaining(&Rules::RFC9111, IgnoredFields::CACHE_CONTROL);
    assert_eq!(ignored, ["Set-Cookie", "X-One", "x-two", "Cache-Control"]);
    let expected =
        ["Proxy-Authenticate", "proxy-authentication-info", "Set-Cookie", "X-One", "x-two", "Cache-Control"];
    assert_eq!(remaining(&Rules::NGINX, IgnoredFields::NONE), expected);
}
