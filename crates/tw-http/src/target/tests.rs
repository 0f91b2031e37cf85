//! Paths, extensions and arguments.

use super::*;

/// Path, extension, arguments; "" for a target that is refused.
fn normal(target: &[u8], merge_slashes: bool) -> (String, String, String) {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let mut path = Vec::new();
    let Ok(parts) = normalize(target, merge_slashes, &mut path) else { return Default::default() };
    let (exten, args) = (&path[parts.exten.clone()], &target[parts.args.clone()]);

    let scanned = scan(target);
    if scanned.is_normal {
        assert_eq!(&target[..scanned.path_len], path, "{}", text(target));
        assert_eq!(&target[scanned.parts.exten], exten, "{}", text(target));
        assert_eq!(&target[scanned.parts.args], args, "{}", text(target));
    }
    (text(&path), text(exten), text(args))
}

#[test]
fn extensions_and_arguments() {
    let table = [
        ("/", "/", "", ""),
        ("/a", "/a", "", ""),
        ("/a.html", "/a.html", "html", ""),
        ("/a.tar.gz?x.y", "/a.tar.gz", "gz", "x.y"),
        ("/a.b/c", "/a.b/c", "", ""),
        ("/a.", "/a.", "", ""),
        ("/.htaccess", "/.htaccess", "", ""),
        ("/.a.b", "/.a.b", "b", ""),
        ("/...", "/...", "", ""),
        ("/...a", "/...a", "", ""),
        ("/...a.b", "/...a.b", "b", ""),
        ("/a%2ehtml", "/a.html", "html", ""),
        ("/a.b%2Fc", "/a.b/c", "", ""),
        ("/a.%62", "/a.b", "b", ""),
        ("/x.y/../a.b", "/a.b", "b", ""),
        ("/a.b/.", "/a.b/", "", ""),
        ("/%3F.a", "/?.a", "a", ""),
        ("/+.a", "/+.a", "a", ""),
        ("/a.b?", "/a.b", "b", ""),
        ("/a.b#c?d", "/a.b", "b", ""),
        ("/a.b?c#d", "/a.b", "b", "c"),
        ("?a", "/", "", "a"),
    ];
    for (target, path, exten, args) in table {
        let expected = (path.to_owned(), exten.to_owned(), args.to_owned());
        assert_eq!(normal(target.as_bytes(), true), expected, "{target}");
    }
}

#[test]
fn slashes_stay_unless_merged() {
    let table = [
        ("//a", "/a", "//a"),
        ("/a//b///c", "/a/b/c", "/a//b///c"),
        ("/a/%2f/b", "/a/b", "/a///b"),
        ("/a//../b", "/b", "/a/b"),
        ("/a//./b", "/a/b", "/a//b"),
        ("//..", "", "/"),
        ("//../..", "", ""),
        ("/a/b//..", "/a/", "/a/b/"),
    ];
    for (target, merged, kept) in table {
        assert_eq!(normal(target.as_bytes(), true).0, merged, "{target}");
        assert_eq!(normal(target.as_bytes(), false).0, kept, "{target}");
    }
}

/// RFC 3986 section 5.2.4 and 5.4: removal of dot segments.
#[test]
fn dot_segments_rfc3986() {
    let table = [
        ("/a/b/c/./../../g", "/a/g"),
        ("/mid/content=5/../6", "/mid/6"),
        ("/b/c/./g", "/b/c/g"),
        ("/b/c/g/", "/b/c/g/"),
        ("/b/c/.", "/b/c/"),
        ("/b/c/..", "/b/"),
        ("/b/c/../g", "/b/g"),
        ("/b/c/../../g", "/g"),
        ("/b/c/g.", "/b/c/g."),
        ("/b/c/.g", "/b/c/.g"),
        ("/b/c/g..", "/b/c/g.."),
        ("/b/c/..g", "/b/c/..g"),
        ("/b/c/./g/.", "/b/c/g/"),
        ("/b/c/g/./h", "/b/c/g/h"),
        ("/b/c/g/../h", "/b/c/h"),
        ("/b/c/g;x=1/./y", "/b/c/g;x=1/y"),
        ("/b/c/g;x=1/../y", "/b/c/y"),
        // RFC 3986 stays at the root here; nginx refuses the path.
        ("/b/c/../../../g", ""),
    ];
    for (target, path) in table {
        assert_eq!(normal(target.as_bytes(), true).0, path, "{target}");
    }
}

#[test]
fn invalid_targets_are_refused() {
    for target in
        ["/%", "/%4", "/%4g", "/%g4", "/%00", "/a%00", "/..", "/%2e%2e", "/a/../..", "/.%2e/", "a/..", ".."]
    {
        let mut path = Vec::new();
        assert_eq!(normalize(target.as_bytes(), true, &mut path), Err(BadPath), "{target}");
    }
}

#[test]
fn extensions_of_internal_paths() {
    let table = [
        ("/a.b", "b"),
        ("/a", ""),
        ("/.a", ""),
        ("/a/.b", ""),
        ("/a.b/c", ""),
        ("/a..b", "b"),
        ("", ""),
        ("/a.", ""),
    ];
    for (path, expected) in table {
        assert_eq!(exten(path.as_bytes()), expected.as_bytes(), "{path}");
    }
}

#[test]
fn arguments() {
    assert_eq!(split_args(b"/a?b?c"), (&b"/a"[..], &b"b?c"[..]));
    assert_eq!(split_args(b"/a"), (&b"/a"[..], &b""[..]));
    let args = b"a=1&bc=2&A=3&d&e=&bc=4==&=5";
    let table = [("a", Some("1")), ("BC", Some("2")), ("d", None), ("e", Some("")), ("c", None), ("", None)];
    for (name, value) in table {
        assert_eq!(arg(args, name.as_bytes()), value.map(str::as_bytes), "{name}");
    }
}
