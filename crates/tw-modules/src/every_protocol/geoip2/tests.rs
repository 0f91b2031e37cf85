//! Databases of each shape and size, paths, values, and databases that are broken on purpose.

use std::net::IpAddr;

use tw_conf::{MemoryFiles, Node, Reader, Tree, Word};
use tw_core::vars::Value;
use tw_rt::CountingHeap;
use tw_testkit::Random;
use tw_testkit::mmdb::{Mmdb, MmdbValue, country, map, text};

use super::database::{Database, FORMAT, ValuePath};
use super::read::RawBlock;

fn database(mmdb: &Mmdb) -> Database {
    (FORMAT.parse)(mmdb.encode()).unwrap()
}

/// The nodes of a configuration.
fn nodes(conf: &str) -> Vec<Node> {
    let mut tree = Tree::default();
    Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", conf.as_bytes()).unwrap();
    tree.nodes
}

/// The path of these words.
fn path(words: &str) -> ValuePath {
    let words: Vec<Word> = nodes(&format!("path {words};")).remove(0).args;
    ValuePath::new(&words).unwrap()
}

/// The value of an address; `None` if there is none.
fn value(database: &Database, addr: &str, words: &str) -> Option<String> {
    let mut out = Vec::new();
    let found_value = database.look_up(addr.parse().unwrap(), &path(words), &mut out);
    assert_eq!(
        found_value == Value::Missing,
        out.is_empty() && found_value != Value::Found,
        "{addr} {words}"
    );
    (found_value == Value::Found).then(|| String::from_utf8_lossy(&out).into_owned())
}

#[test]
fn addresses_are_found_in_databases_of_every_kind() {
    for record_size in [24, 28, 32] {
        let v4 = Mmdb::v4(record_size);
        let v6 = Mmdb::v6(record_size)
            .network("2001:db8::/32", &country("DE", "Germany"))
            .network("2001:db8:1::/48", &country("FR", "France"));
        for (mmdb, is_v6) in [(v4, false), (v6, true)] {
            let mmdb = mmdb
                .network("0.0.0.0/1", &country("US", "United States"))
                .network("10.0.0.0/8", &country("SE", "Sweden"))
                .network("10.1.2.3/32", &country("GB", "United Kingdom"))
                .network("255.255.255.255/32", &country("ZZ", ""));
            let database = database(&mmdb);
            for (addr, expected) in [
                ("9.255.255.255", Some("US")),
                ("10.0.0.0", Some("SE")),
                ("10.1.2.2", Some("SE")),
                ("10.1.2.3", Some("GB")),
                ("::ffff:10.1.2.3", Some("GB")),
                ("10.255.255.255", Some("SE")),
                ("11.0.0.0", Some("US")),
                ("128.0.0.0", None),
                ("255.255.255.255", Some("ZZ")),
                ("2001:db8::1", is_v6.then_some("DE")),
                ("2001:db8:1::1", is_v6.then_some("FR")),
                ("2001:db9::1", None),
            ] {
                let text = value(&database, addr, "country iso_code");
                assert_eq!(text.as_deref(), expected, "{record_size} {is_v6} {addr}");
            }
        }
    }
}

#[test]
fn values_have_the_texts_of_the_module() {
    let long = "x".repeat(70_000);
    let record = map([
        ("text", text("Zürich")),
        ("empty", text("")),
        ("bytes", MmdbValue::Bytes(b"\x00\xff".to_vec())),
        ("broken", MmdbValue::Raw(b"\x42\xc3\x28".to_vec())),
        ("u16", MmdbValue::U16(65_535)),
        ("zero", MmdbValue::U32(0)),
        ("u32", MmdbValue::U32(u32::MAX)),
        ("u64", MmdbValue::U64(u64::MAX)),
        ("u128", MmdbValue::U128(0xab << 64 | 1)),
        ("i32", MmdbValue::I32(-5)),
        ("double", MmdbValue::Double(-52.123_456_7)),
        ("float", MmdbValue::Float(0.5)),
        ("true", MmdbValue::Bool(true)),
        ("false", MmdbValue::Bool(false)),
        ("middle", text("y".repeat(300))),
        ("long", text(long)),
        ("array", MmdbValue::Array(vec![text("a"), map([("0", text("inner"))]), text("c")])),
        ("map", map([("1", text("one")), ("-1", text("minus one"))])),
    ]);
    let database = database(&Mmdb::v4(24).network("10.0.0.0/8", &record));
    for (words, expected) in [
        ("text", Some("Zürich")),
        ("empty", Some("")),
        ("u16", Some("65535")),
        ("zero", Some("0")),
        ("u32", Some("4294967295")),
        ("u64", Some("18446744073709551615")),
        ("u128", Some("0x00000000000000ab0000000000000001")),
        ("i32", Some("-5")),
        ("double", Some("-52.12346")),
        ("float", Some("0.50000")),
        ("true", Some("1")),
        ("false", Some("0")),
        ("middle", Some(&*"y".repeat(300))),
        ("long", None),
        ("array", None),
        ("array 0", Some("a")),
        ("array -1", Some("c")),
        ("array 3", None),
        ("array -4", None),
        ("array 1 0", None),
        ("array x", None),
        ("map", None),
        ("map 1", Some("one")),
        ("map -1", Some("minus one")),
        ("map 2", None),
        ("text x", None),
        ("text 0", None),
        ("none", None),
        ("none of these", None),
        ("", None),
    ] {
        assert_eq!(value(&database, "10.0.0.1", words).as_deref(), expected, "{words}");
    }
    let mut out = b"before ".to_vec();
    for words in ["bytes", "broken"] {
        database.look_up(IpAddr::from([10, 0, 0, 1]), &path(words), &mut out);
    }
    assert_eq!(out, b"before \x00\xff\xc3\x28");
    let flat = Mmdb::v4(24).network("10.0.0.0/8", &text("a record of one text"));
    assert_eq!(value(&self::database(&flat), "10.0.0.1", "").as_deref(), Some("a record of one text"));
    assert_eq!(value(&self::database(&flat), "10.0.0.1", "country"), None);
}

#[test]
fn broken_databases_are_refused_with_a_reason() {
    let good = Mmdb::v4(24).network("0.0.0.0/0", &text("unused")).network("8.0.0.0/8", &country("US", ""));
    let whole = good.encode();
    let with = |record: &[u8]| Mmdb::v4(24).network("8.0.0.0/8", &MmdbValue::Raw(record.to_vec())).encode();
    let metadata = |key: &str, value| good.clone().metadata(key, value).encode();
    for (name, content) in [
        ("empty", Vec::new()),
        ("text", b"no database".to_vec()),
        ("html", b"<html>".repeat(1000)),
        ("first half", whole[..whole.len() / 2].to_vec()),
        ("without its end", whole[..whole.len() - 20].to_vec()),
        ("without its beginning", whole[40..].to_vec()),
        ("version", metadata("binary_format_major_version", MmdbValue::U16(3))),
        ("record size", metadata("record_size", MmdbValue::U16(20))),
        ("address version", metadata("ip_version", MmdbValue::U16(5))),
        ("no nodes", metadata("node_count", MmdbValue::U32(0))),
        ("too many nodes", metadata("node_count", MmdbValue::U32(u32::MAX))),
        ("metadata of another type", metadata("build_epoch", text("yesterday"))),
        ("pointer loop", with(b"\x20\x00")),
        ("pointer beyond the end", with(b"\x38\xff\xff\xff\xff")),
        ("text beyond the end", with(b"\x5f\xff\xff\xff")),
        ("unknown type", with(b"\x00\xff")),
    ] {
        let Err(why) = (FORMAT.parse)(content) else { panic!("{name} is taken for a database") };
        assert!(!why.is_empty() && why.len() < 300, "{name}: {why}");
    }
    assert!((FORMAT.parse)(whole).is_ok());
}

/// Records that are wrong where no trial looks: the value is missing, and nothing else happens.
#[test]
fn broken_records_have_no_values() {
    let deep = [b"\xe1\x41a".repeat(100_000), b"\x41x".to_vec()].concat();
    for record in [
        &b"\x20\x00"[..],
        b"\xe1\x41a\x20\x00",
        b"\xe1\x20\x00\x41x",
        b"\xe1\x41b\x5f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\x1f\x04\xff\xff\xff",
        b"\xe1\x41b\x00\x40",
        &deep,
    ] {
        let mmdb = Mmdb::v4(24).network("10.0.0.0/8", &MmdbValue::Raw(record.to_vec()));
        let database = database(&mmdb);
        for words in ["", "a", "a a a a a a a a", "b", "0", "a 0 a"] {
            assert_eq!(value(&database, "10.0.0.1", words), None, "{record:?} {words}");
        }
    }
}

/// Nothing panics and everything ends, whatever the bytes are.
#[test]
fn changed_bytes_are_harmless() {
    let good = Mmdb::v6(28)
        .network("10.0.0.0/8", &country("SE", "Sweden"))
        .network("2001:db8::/32", &map([("a", MmdbValue::Array(vec![text("b"), MmdbValue::Pointer(0)]))]))
        .encode();
    let mut random = Random::new(7);
    let paths = [path("country iso_code"), path("country names en"), path("a 1 country"), path("")];
    let addrs: Vec<IpAddr> = ["10.0.0.1", "2001:db8::1", "::1"].map(|addr| addr.parse().unwrap()).into();
    let mut usable = 0;
    for _ in 0..20_000 {
        let mut content = good.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(content.len());
            content[at] = random.below(256) as u8;
        }
        let Ok(database) = (FORMAT.parse)(content) else { continue };
        usable += 1;
        for (path, addr) in paths.iter().flat_map(|path| addrs.iter().map(move |addr| (path, *addr))) {
            database.look_up(addr, path, &mut Vec::new());
        }
    }
    assert!((1_000..20_000).contains(&usable), "{usable}");
}

#[test]
fn look_up_allocates_nothing() {
    let database = database(&Mmdb::v6(24).network("10.0.0.0/8", &country("SE", "Sweden")));
    let value_path = path("country names en");
    let not_found = path("country names xx");
    let addr = IpAddr::from([10, 0, 0, 1]);
    let unknown = IpAddr::from([11, 0, 0, 1]);
    let mut out = Vec::with_capacity(100);
    let ((), heap) = CountingHeap::measure(|| {
        for _ in 0..10 {
            out.clear();
            assert_eq!(database.look_up(addr, &value_path, &mut out), Value::Found);
            assert_eq!(database.look_up(addr, &not_found, &mut out), Value::Missing);
            assert_eq!(database.look_up(unknown, &value_path, &mut out), Value::Missing);
        }
    });
    assert_eq!((&*out, heap.peak), (&b"Sweden"[..], 0));
}

#[test]
fn wrong_lines_are_refused() {
    let long = format!("$a {};", "x ".repeat(17));
    for (lines, expected) in [
        ("x y;", "invalid setting \"x\""),
        ("$ x;", "invalid variable name \"$\""),
        ("$a x { }", "unexpected \"{\""),
        ("auto_reload;", "invalid number of arguments for auto_reload"),
        ("auto_reload 1m 2m;", "invalid number of arguments for auto_reload"),
        ("auto_reload soon;", "invalid interval for auto_reload \"soon\""),
        ("auto_reload 1m; auto_reload 2m;", "\"auto_reload\" directive is duplicate"),
        ("$a default= x;", "invalid setting \"default=\" for \"$a\""),
        ("$a source= x;", "invalid setting \"source=\" for \"$a\""),
        ("$a other=1 x;", "invalid setting \"other=1\" for \"$a\""),
        ("$a default=1 default=2 x;", "default has already been declared for \"$a\""),
        ("$a source=$b source=$c x;", "source has already been declared for \"$a\""),
        ("$a source=b x;", "invalid source variable name \"b\""),
        ("$a metadata;", "invalid number of arguments for metadata"),
        ("$a metadata build_epoch x;", "invalid number of arguments for metadata"),
        ("$a metadata other;", "invalid metadata \"other\""),
    ] {
        let node = nodes(&format!("geoip2 x {{ {lines} }}")).remove(0);
        let Err(error) = RawBlock::read(&node) else { panic!("{lines} is taken") };
        assert!(error.message.contains(expected), "{lines}: {}", error.message);
    }
    let words = nodes(&long).remove(0).args;
    assert!(ValuePath::new(&words[..16]).is_ok() && ValuePath::new(&words).is_err());
}
