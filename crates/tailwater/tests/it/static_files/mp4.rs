//! `mp4` and `flv`: parts of videos.

use std::fs;

use tw_testkit::Server;
use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::mp4::{MoovPosition, Track, boxed, expected, movie, read};

use crate::support::{get, page, request, server, start_server};

fn tracks() -> [Track; 2] {
    [
        Track { key_every: 5, offsets: vec![0, 3, 3], ..Track::new(600, 40, 100) },
        Track { per_chunk: vec![7, 7, 2], ..Track::new(1000, 60, 100) },
    ]
}

fn serve(directives: &str) -> Server {
    // Long enough that the pool cuts it.
    let long = Track { count: 30_000, per_chunk: vec![1], ..Track::new(1000, 0, 10) };
    start_server(
        server()
            .file("html/front.mp4", movie(&tracks(), MoovPosition::Front))
            .file("html/back.mp4", movie(&tracks(), MoovPosition::Back))
            .file("html/long.mp4", movie(&[long], MoovPosition::Back))
            .file("html/v.flv", "0123456789")
            .file("html/empty", "")
            .file("html/d/index.html", "index"),
        &format!(
            "types {{ video/mp4 mp4; video/x-flv flv; }} {directives}
             location / {{ mp4; }} location /flv/ {{ alias html/; flv; }}
             location /key/ {{ alias html/; mp4; mp4_start_key_frame on;
                 if ($arg_if) {{ add_header X y; }} location /key/inner/ {{ alias html/; }} }}
             location /small/ {{ alias html/; mp4; mp4_buffer_size 100; mp4_max_buffer_size 200; }}"
        ),
    )
}

#[test]
fn mp4_parts_hold_their_samples() {
    let server = serve("");
    for name in ["front", "back"] {
        let all = read(&fs::read(server.prefix().join(format!("html/{name}.mp4"))).unwrap());
        for (location, at_key) in [("", false), ("/key", true)] {
            for (args, start, length) in [
                ("start=1", 1_000, 0),
                ("start=1.25&end=3.5", 1_250, 2_250),
                ("end=2.1", 0, 2_100),
                ("START=.5&a=b&end=100", 500, 99_500),
                ("start=x&end=1", 0, 1_000),
                ("start=2&end=1", 2_000, 0),
                ("start=2.0009&end=2.2", 2_000, 200),
            ] {
                let part = get(&server, &format!("{location}/{name}.mp4?{args}"));
                assert_eq!((part.status, part.field("Content-Type")), (200, Some("video/mp4")), "{args}");
                let read_tracks: Vec<_> = tracks()
                    .iter()
                    .zip(&all)
                    .filter_map(|(track, read)| expected(read, track.timescale, start, length, at_key))
                    .collect();
                assert_eq!(read(&part.body), read_tracks, "{name} {args}");
            }
        }
        // The whole file, if nothing is asked for that makes sense.
        for args in ["", "?start=x", "?start=", "?end=0", "?end=-1", "?start=1e3", "?x=1"] {
            assert_eq!(read(&get(&server, &format!("/{name}.mp4{args}")).body), all, "{args}");
        }
    }
    // An `if` inherits `mp4`; a nested location does not.
    let of = |target: &str| get(&server, target).body;
    assert_eq!(of("/key/front.mp4?start=1.25&if=1"), of("/key/front.mp4?start=1.25"));
    assert_ne!(of("/key/front.mp4?start=1.25"), of("/front.mp4?start=1.25"));
    assert_eq!(of("/key/inner/front.mp4?start=1.25"), of("/front.mp4"));
    let long = get(&server, "/long.mp4?start=100&end=101");
    let samples = &read(&long.body)[0].samples;
    assert_eq!((samples.len(), samples[0].data[..4].to_vec()), (100, 10_000_u32.to_be_bytes().to_vec()));
}

#[test]
fn mp4_parts_have_validators_and_ranges_of_their_own() {
    let server = serve("");
    let whole = get(&server, "/back.mp4");
    let part = get(&server, "/back.mp4?start=1&end=3");
    assert_eq!(part.field("Last-Modified"), whole.field("Last-Modified"));
    assert_eq!((part.field("Accept-Ranges"), whole.field("Accept-Ranges")), (Some("bytes"), Some("bytes")));
    // The entity tag has the length of the part that is sent.
    let tag = |len: usize| {
        whole.field("ETag").unwrap().split_once('-').unwrap().0.to_owned() + &format!("-{len:x}\"")
    };
    assert_eq!(part.field("ETag"), Some(&*tag(part.body.len())));
    assert_eq!(whole.field("ETag"), Some(&*tag(whole.body.len())));
    let again = request(
        &server,
        "GET /back.mp4?start=1&end=3",
        &[&format!("If-None-Match: {}", tag(part.body.len()))],
    );
    assert_eq!(again.status, 304);
    let head = request(&server, "HEAD /back.mp4?start=1&end=3", &[]);
    assert_eq!(head.field("Content-Length"), part.field("Content-Length"));
    // A single range of a part may cover the end of the generated head; two ranges are not served.
    let from = part.body.len() - 40;
    let range = request(&server, "GET /back.mp4?start=1&end=3", &[&format!("Range: bytes=100-{from}")]);
    assert_eq!((range.status, &range.body[..]), (206, &part.body[100..=from]));
    let two = request(&server, "GET /back.mp4?start=1&end=3", &["Range: bytes=0-1,3-4"]);
    assert_eq!((two.status, two.body.len()), (200, part.body.len()));
    let none = request(&server, "GET /back.mp4?start=1&end=3", &["Range: bytes=1000000-"]);
    assert_eq!(none.status, 416);
    assert_eq!(request(&server, "GET /back.mp4", &["Range: bytes=0-1,3-4"]).status, 206);
}

#[test]
fn invalid_videos_are_refused() {
    let server = serve("");
    let html = server.prefix().join("html");
    let file = fs::read(html.join("back.mp4")).unwrap();
    assert_eq!(request(&server, "POST /back.mp4", &["Content-Length: 0"]).status, 405);
    assert_eq!(page(&server, "/none.mp4?start=1").0, 404);
    assert_eq!(page(&server, "/d/"), (200, "index".to_owned()));
    assert_eq!(get(&server, "/d?start=1").status, 301);
    let moov = boxed(b"moov", boxed(b"udta", "x"));
    for (name, content, line) in [
        ("empty", Vec::new(), "no mp4 trak atoms were found in"),
        ("text", b"nothing at all".to_vec(), "mp4 atom too large:"),
        ("short", file[..file.len() - 30].to_vec(), "mp4 atom too large:"),
        ("cut", vec![0, 0, 0], "mp4 file truncated"),
        ("no_tracks", [moov.clone(), boxed(b"mdat", "x")].concat(), "no mp4 trak atoms were found in"),
        ("ftyp", boxed(b"ftyp", [0; 1025]), "mp4 ftyp atom is too large:1025"),
        ("two", [moov.clone(), moov].concat(), "duplicate mp4 moov atom in"),
        ("mdat", boxed(b"mdat", "x").repeat(2), "duplicate mp4 mdat atom in"),
        ("many", boxed(b"free", "").repeat(65_537), "too many mp4 atoms in"),
        (
            "huge",
            [&1_u32.to_be_bytes()[..], b"moov", &[0xff; 8], b"x"].concat(),
            "mp4 atom too large:18446744073709551615",
        ),
    ] {
        fs::write(html.join(format!("{name}.mp4")), content).unwrap();
        assert_eq!(get(&server, &format!("/{name}.mp4?start=1")).status, 500, "{name}");
        server.wait_error_log(line).unwrap();
        assert_eq!(get(&server, &format!("/{name}.mp4")).status, 200, "{name}");
    }
    // A part that is not there.
    assert_eq!(get(&server, "/back.mp4?start=7").status, 500);
    server.wait_error_log("mp4 start time exceeds file duration").unwrap();
    // The metadata needs more memory than allowed.
    assert_eq!(get(&server, "/small/back.mp4?start=1").status, 500);
    server.wait_error_log(", you may want to increase mp4_max_buffer_size").unwrap();
}

#[test]
fn failing_or_stalled_disk_ends_only_its_requests() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    disk.write("v.mp4", movie(&tracks(), MoovPosition::Back));
    let server = start_server(
        server().file("html/fast.txt", "fast"),
        &format!("location /slow/ {{ alias {}/; mp4; }}", disk.path().display()),
    );
    let fault = disk.on(Op::Read).inject(Fault::Error(rustix::io::Errno::IO));
    assert_eq!(get(&server, "/slow/v.mp4?start=1").status, 500);
    server.wait_error_log("v.mp4\" failed (5: Input/output error)").unwrap();
    fault.lift();
    let stall = disk.on(Op::Read).inject(Fault::Stall);
    let mut waiting = server.connect().unwrap();
    waiting.send("GET /slow/v.mp4?start=1 HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(tw_testkit::wait::until(tw_testkit::wait::TIMEOUT, || stall.waiting() > 0));
    assert_eq!(page(&server, "/fast.txt"), (200, "fast".to_owned()));
    stall.lift();
    assert_eq!(read(&waiting.read_response().unwrap().body).len(), 2);
}

#[test]
fn flv_start_skips_bytes() {
    let server = serve("");
    let header = "FLV\x01\x05\0\0\0\x09\0\0\0\0";
    for (target, expected) in [
        ("/flv/v.flv", "0123456789".to_owned()),
        ("/flv/v.flv?start=0", "0123456789".to_owned()),
        ("/flv/v.flv?start=4", format!("{header}456789")),
        ("/flv/v.flv?start=9", format!("{header}9")),
        ("/flv/v.flv?start=10", "0123456789".to_owned()),
        ("/flv/v.flv?start=x", "0123456789".to_owned()),
        ("/flv/v.flv?start=-1", "0123456789".to_owned()),
        ("/flv/v.flv?start=99999999999999999999", "0123456789".to_owned()),
        ("/flv/empty?start=0", String::new()),
    ] {
        let video = get(&server, target);
        assert_eq!((video.status, video.text()), (200, expected.clone()), "{target}");
        let tag = format!("-{:x}\"", expected.len());
        assert!(video.field("ETag").unwrap().ends_with(&tag), "{target}");
        assert_eq!(video.field("Accept-Ranges"), Some("bytes"), "{target}");
    }
    assert_eq!(get(&server, "/flv/v.flv?start=4").field("Content-Type"), Some("video/x-flv"));
    let range = request(&server, "GET /flv/v.flv?start=4", &["Range: bytes=11-14"]);
    assert_eq!((range.status, range.text()), (206, "\0\x0045".to_owned()));
    let two = request(&server, "GET /flv/v.flv?start=4", &["Range: bytes=0-2,15-16"]);
    assert!(
        two.text().contains("\r\n\r\nFLV\r\n") && two.text().contains("\r\n\r\n67\r\n"),
        "{}",
        two.text()
    );
    assert_eq!(request(&server, "POST /flv/v.flv", &["Content-Length: 0"]).status, 405);
    assert_eq!(page(&server, "/flv/none").0, 404);
    assert_eq!(get(&server, "/flv/d").status, 301);
}
