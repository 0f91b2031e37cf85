//! nginx's storage decisions and lifetimes: the responses of its own tests (`proxy_cache_control.t`), and corner
//! cases.

use super::*;

const PAST: &str = "Expires: Thu, 01 Jan 1970 00:00:01 GMT";
const FUTURE: &str = "Expires: Sun, 06 Nov 1994 08:51:17 GMT"; // in 100 seconds

fn seconds(lines: &[&str], terms: &StoreSettings) -> Result<i64, NoStoreReason> {
    stored(lines, &Rules::NGINX, terms).map(|lifetime| lifetime.valid_until - NOW)
}

#[test]
fn targeted_fields_replace_cache_control_and_expires() {
    let names = [&b"Tailwater-Cache-Control"[..], b"CDN-Cache-Control"];
    let rules = Rules { targeted: names.map(Bytes::copy_from_slice).into(), ..Rules::NGINX };
    let table: &[(Lines<'_>, Result<i64, NoStoreReason>)] = &[
        (&["Cache-Control: no-store", "CDN-Cache-Control: max-age=60"], Ok(60)),
        (&["CDN-Cache-Control: max-age=60", "Cache-Control: no-store"], Ok(60)),
        (&["cdn-cache-control: max-age=60, s-maxage=5", PAST], Ok(5)),
        (&["CDN-Cache-Control: max-age=60", "Tailwater-Cache-Control: max-age=5"], Ok(5)),
        (&["CDN-Cache-Control: max-age=60", "Tailwater-Cache-Control: max-age=5,"], Ok(60)),
        (&["CDN-Cache-Control: max-age=60", "CDN-Cache-Control: s-maxage=7"], Ok(7)),
        (&["Cache-Control: max-age=7", "CDN-Cache-Control:"], Ok(7)),
        (&["CDN-Cache-Control: max-age=0", "Cache-Control: max-age=7"], Err(NoStoreReason::MaxAge)),
        (&["CDN-Cache-Control: private=\"X\", max-age=5"], Err(NoStoreReason::Private)),
        (&["CDN-Cache-Control: no-cache", FUTURE], Err(NoStoreReason::NoCache)),
        (&["CDN-Cache-Control: no-store", "X-Accel-Expires: 60"], Ok(60)),
        (&["X-Accel-Expires: 60", "CDN-Cache-Control: no-store"], Ok(60)),
        (&["CDN-Cache-Control: public", FUTURE], Err(NoStoreReason::NoValidity)),
        (&["CDN-Cache-Control: max-age=60", "Set-Cookie: a=b"], Err(NoStoreReason::SetCookie)),
    ];
    for (lines, expected) in table {
        let got = stored(lines, &rules, &StoreSettings::default()).map(|lifetime| lifetime.valid_until - NOW);
        assert_eq!(got, *expected, "{lines:?}");
    }
    let ignored = StoreSettings { valid_s: Some(9), ignored: IgnoredFields::CACHE_CONTROL };
    let got = stored(&["CDN-Cache-Control: no-store"], &rules, &ignored);
    assert_eq!(got.map(|lifetime| lifetime.valid_until - NOW), Ok(9));
    let lines = ["CDN-Cache-Control: max-age=60, stale-while-revalidate=3"];
    let lifetime = stored(&lines, &rules, &StoreSettings::default()).unwrap();
    assert_eq!((lifetime.stale_while_revalidate_s, lifetime.stale_if_error_s), (3, 3));
}

#[test]
fn lifetimes() {
    let table: &[(Lines<'_>, Result<i64, NoStoreReason>)] = &[
        (&[], Err(NoStoreReason::NoValidity)),
        (&[FUTURE], Ok(100)),
        (&["Expires: Sun, 06 Nov 1994 08:49:37 GMT"], Ok(0)),
        (&[PAST], Err(NoStoreReason::Expired)),
        (&["Expires: 0"], Err(NoStoreReason::Expired)),
        (&[FUTURE, PAST], Ok(100)),
        (&["Cache-Control: max-age=60"], Ok(60)),
        (&["Cache-Control: MAX-AGE=60"], Ok(60)),
        (&["Cache-Control: s-maxage=5, max-age=60"], Ok(5)),
        (&["Cache-Control: max-age=60, s-maxage=5"], Ok(5)),
        (&["Cache-Control: max-age=5", "Cache-Control: max-age=60"], Ok(60)),
        (&["Cache-Control: max-age=5;x"], Ok(5)),
        (&["Cache-Control: x-max-age=5"], Ok(5)),
        (&["Cache-Control: max-age="], Err(NoStoreReason::MaxAge)),
        (&["Cache-Control: max-age"], Err(NoStoreReason::NoValidity)),
        (&["Cache-Control: max-age=\"5\""], Err(NoStoreReason::BadNumber)),
        (&["Cache-Control: max-age=-5"], Err(NoStoreReason::BadNumber)),
        (&["Cache-Control: max-age=0"], Err(NoStoreReason::MaxAge)),
        (&["Cache-Control: max-age=9223372036854775808"], Ok(i64::MAX - NOW)),
        (&["Cache-Control: max-age=9223372036854775808x"], Ok(i64::MAX - NOW)),
        // Cache-Control before and after Expires
        (&["Cache-Control: max-age=60", PAST], Ok(60)),
        (&[PAST, "Cache-Control: max-age=60"], Ok(60)),
        (&["Cache-Control: max-age=60", FUTURE], Ok(60)),
        (&[FUTURE, "Cache-Control: max-age=60"], Ok(60)),
        (&["Cache-Control: no-cache", FUTURE], Err(NoStoreReason::NoCache)),
        (&[FUTURE, "Cache-Control: no-cache"], Err(NoStoreReason::NoCache)),
        (&["Cache-Control: no-cache, max-age=60"], Err(NoStoreReason::NoCache)),
        (&["Cache-Control: no-cache", "Cache-Control: max-age=60"], Err(NoStoreReason::NoCache)),
        (&["Cache-Control: no-cache=\"X\", max-age=60"], Err(NoStoreReason::NoCache)),
        (&["Cache-Control: No-Store"], Err(NoStoreReason::NoStore)),
        (&["Cache-Control: private"], Err(NoStoreReason::Private)),
        (&["Cache-Control: public", FUTURE], Ok(100)),
        // X-Accel-Expires before all others
        (&["X-Accel-Expires: 60"], Ok(60)),
        (&["X-Accel-Expires: @784111778"], Ok(1)),
        (&["X-Accel-Expires: @60"], Ok(60 - NOW)),
        (&["X-Accel-Expires: 60", "X-Accel-Expires: 0"], Ok(60)),
        (&["X-Accel-Expires: 60", PAST, "Cache-Control: no-cache"], Ok(60)),
        (&[PAST, "Cache-Control: no-cache", "X-Accel-Expires: 60"], Ok(60)),
        (&["X-Accel-Expires: 0", "Cache-Control: max-age=60", FUTURE], Err(NoStoreReason::AccelExpires)),
        (&["Cache-Control: max-age=60", FUTURE, "X-Accel-Expires: 0"], Err(NoStoreReason::AccelExpires)),
        (&["Cache-Control: max-age=60", "X-Accel-Expires: x"], Ok(60)),
        (&["Cache-Control: max-age=60", "X-Accel-Expires: -1"], Ok(60)),
        (&["Cache-Control: max-age=60", "X-Accel-Expires:"], Ok(60)),
        (&["Cache-Control: max-age=60", "X-Accel-Expires: @"], Ok(60)),
        (&["Cache-Control: max-age=60", "X-Accel-Expires: @0"], Err(NoStoreReason::NoValidity)),
        (&["X-Accel-Expires: @0", "Cache-Control: max-age=60"], Ok(60)),
        (&["Cache-Control: max-age=x", "X-Accel-Expires: 60"], Err(NoStoreReason::BadNumber)),
        // Fields that forbid to store the response, whatever else it has.
        (&["Set-Cookie: a", PAST, "Cache-Control: max-age=60"], Err(NoStoreReason::SetCookie)),
        (&["X-Accel-Expires: 60", "Set-Cookie: a"], Err(NoStoreReason::SetCookie)),
        (&["X-Accel-Expires: 60", "Vary: *"], Err(NoStoreReason::VaryStar)),
        (&["X-Accel-Expires: 60", "Vary: Cookie"], Ok(60)),
    ];
    for (lines, expected) in table {
        assert_eq!(seconds(lines, &StoreSettings::default()), *expected, "{lines:?}");
    }
}

#[test]
fn cache_valid_applies_without_response_fields() {
    let terms = |valid_s, ignored| StoreSettings { valid_s, ignored };
    let all = IgnoredFields::CACHE_CONTROL | IgnoredFields::EXPIRES | IgnoredFields::X_ACCEL_EXPIRES;
    let lines = [FUTURE, "Cache-Control: max-age=60", "X-Accel-Expires: 30"];
    let table: &[(Lines<'_>, StoreSettings, Result<i64, NoStoreReason>)] = &[
        (&[], terms(Some(7), IgnoredFields::NONE), Ok(7)),
        (&[], terms(Some(0), IgnoredFields::NONE), Err(NoStoreReason::NoValidity)),
        (&lines, terms(Some(7), IgnoredFields::NONE), Ok(30)),
        (&lines, terms(Some(7), all), Ok(7)),
        (&lines, terms(None, all), Err(NoStoreReason::NoValidity)),
        // A field that is ignored keeps Cache-Control from being read once Expires has been.
        (&lines, terms(None, IgnoredFields::X_ACCEL_EXPIRES), Ok(60)),
        (
            &["X-Accel-Expires: 1", FUTURE, "Cache-Control: max-age=60"],
            terms(None, IgnoredFields::X_ACCEL_EXPIRES),
            Ok(100),
        ),
        (&["Cache-Control: no-cache"], terms(Some(7), IgnoredFields::CACHE_CONTROL), Ok(7)),
        (&["Cache-Control: no-cache"], terms(Some(7), IgnoredFields::EXPIRES), Err(NoStoreReason::NoCache)),
        (
            &["Set-Cookie: a", "Vary: *"],
            terms(Some(7), IgnoredFields::SET_COOKIE | IgnoredFields::VARY),
            Ok(7),
        ),
    ];
    for (lines, terms, expected) in table {
        assert_eq!(seconds(lines, terms), *expected, "{lines:?} {terms:?}");
    }
}

#[test]
fn statuses_and_requests() {
    let terms = StoreSettings { valid_s: Some(1), ..StoreSettings::default() };
    for (status, expected) in [
        (200, None),
        (206, None),
        (404, None),
        (502, None),
        (304, Some(NoStoreReason::Status)),
        (101, Some(NoStoreReason::Status)),
    ] {
        let got =
            stored_as(status, &["Authorization: x", "Cache-Control: no-store"], &[], &Rules::NGINX, &terms);
        assert_eq!(got.err(), expected, "{status}");
    }
}

#[test]
fn windows() {
    type Windows = Result<(u32, u32), NoStoreReason>;
    let table: &[(Lines<'_>, Windows)] = &[
        (&["Cache-Control: max-age=1"], Ok((0, 0))),
        (&["Cache-Control: max-age=1, stale-while-revalidate=5"], Ok((5, 5))),
        (&["Cache-Control: max-age=1, stale-if-error=7, stale-while-revalidate=5"], Ok((5, 7))),
        (&["Cache-Control: max-age=1, stale-if-error=7"], Ok((0, 7))),
        (&["Cache-Control: max-age=1, stale-if-error=x"], Err(NoStoreReason::BadNumber)),
        (
            &["Cache-Control: max-age=1, stale-while-revalidate=99999999999999999999"],
            Ok((u32::MAX, u32::MAX)),
        ),
        (&["Cache-Control: stale-while-revalidate=5", "X-Accel-Expires: @1"], Ok((5, 5))),
        (&["X-Accel-Expires: @1", "Cache-Control: no-cache, stale-while-revalidate=5"], Ok((5, 5))),
        (&["Cache-Control: no-cache, stale-while-revalidate=5", "X-Accel-Expires: @1"], Ok((0, 0))),
    ];
    for (lines, expected) in table {
        let got = stored(lines, &Rules::NGINX, &StoreSettings::default());
        let got = got.map(|lifetime| (lifetime.stale_while_revalidate_s, lifetime.stale_if_error_s));
        assert_eq!(got, *expected, "{lines:?}");
    }
}

#[test]
fn uses() {
    let stored = Lifetime {
        responded: NOW,
        valid_until: NOW + 10,
        stale_while_revalidate_s: 5,
        stale_if_error_s: 7,
        initial_age_s: 0,
        duties: Duties::NONE,
    };
    let request = fields(&["Cache-Control: no-cache, max-age=0, only-if-cached", "Pragma: no-cache"]);
    let stale = |age, while_revalidate, if_error| Reuse::Stale { age, while_revalidate, if_error };
    for (at, expected) in [
        (0, Reuse::Fresh { age: 0 }),
        (10, Reuse::Fresh { age: 10 }),
        (11, stale(11, Window::Open, Window::Open)),
        (15, stale(15, Window::Open, Window::Open)),
        (16, stale(16, Window::Closed, Window::Open)),
        (18, stale(18, Window::Closed, Window::Closed)),
    ] {
        assert_eq!(may_use(&stored, &(Method::Get, &request), NOW + at, &Rules::NGINX), expected, "{at}");
    }
    assert!(!wants_only_stored(&(Method::Get, &request), &Rules::NGINX));
}

#[test]
fn a_304_changes_the_lifetime_and_no_field() {
    let nothing = Fields::new();
    let valid = |update: &[&str], stored: &[&str], valid_s| {
        let update = fields(update);
        let mut stored = fields(stored);
        let before: Vec<_> = stored.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
        merge(&mut stored, &update, &Rules::NGINX);
        assert!(stored.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).eq(before));
        let stored = Response { status: 200, fields: &stored, request_time: NOW, is_slice: false };
        let terms = StoreSettings { valid_s, ..StoreSettings::default() };
        freshen(&(Method::Get, &nothing), &stored, &update, NOW, &Rules::NGINX, &terms).map(|lifetime| {
            (lifetime.valid_until - NOW, lifetime.stale_while_revalidate_s, lifetime.stale_if_error_s)
        })
    };
    let swr = "Cache-Control: stale-while-revalidate=3";
    for (update, stored, valid_s, expected) in [
        (&["Cache-Control: max-age=5"][..], &["Cache-Control: max-age=60"][..], None, Ok((5, 0, 0))),
        (&[], &["Cache-Control: max-age=60, stale-if-error=9"], None, Ok((60, 0, 9))),
        (&["Cache-Control: no-cache"], &["Cache-Control: max-age=60"], None, Ok((60, 0, 0))),
        (&["Set-Cookie: a", "X-Accel-Expires: 0"], &["X-Accel-Expires: 4"], None, Ok((4, 0, 0))),
        (&[swr], &["X-Accel-Expires: 4"], None, Ok((4, 3, 3))),
        (&[], &[PAST], Some(8), Ok((8, 0, 0))),
        (&[], &[PAST], None, Err(NoStoreReason::NoValidity)),
    ] {
        assert_eq!(valid(update, stored, valid_s), expected, "{update:?} {stored:?}");
    }
}
