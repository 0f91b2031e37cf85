//! `hls`: playlists and segments of MP4 files.

use std::fs;

use tw_testkit::Server;
use tw_testkit::mp4::{MoovPosition, PPS, ReadTrack, SPS, Track, boxed, movie, read};

use crate::support::{get, page, refusal, request, server, start_server};

/// Ticks of a second, and the time stamp of the beginning.
const CLOCK: u64 = 90_000;
const BASE: u64 = 180_000;

/// Six seconds and a half of video, with a key frame each second and a half, and of sound.
fn tracks() -> Vec<Track> {
    let video = Track {
        key_every: 15,
        offsets: vec![60, 180, 0],
        sizes: vec![40, 2000, 9, 300],
        media_time: 60,
        ..Track::h264(600, 65, 60)
    };
    vec![video, Track { sizes: vec![100, 211, 7], per_chunk: vec![9], ..Track::aac(280) }]
}

fn serve(directives: &str) -> Server {
    let [video, audio] = tracks().try_into().unwrap();
    // Long enough that the pool reads it.
    let long = Track { count: 20_000, per_chunk: vec![1], ..audio.clone() };
    start_server(
        server()
            .file("html/v.mp4", movie(&[video.clone(), audio.clone()], MoovPosition::Front))
            .file("html/d/v b.MOV", movie(&[audio.clone(), video.clone()], MoovPosition::Back))
            .file("html/mute.mp4", movie(&[video], MoovPosition::Back))
            .file("html/song.m4a", movie(&[audio], MoovPosition::Back))
            .file("html/long.m4a", movie(&[long], MoovPosition::Back))
            .file("html/plain.mp4", movie(&[Track::new(600, 40, 60)], MoovPosition::Back))
            .file("html/other.ts", "text"),
        &format!(
            "{directives} location / {{ hls; }} location /args/ {{ alias html/; hls; hls_forward_args on; hls_fragment 2s; }}
             location /small/ {{ alias html/; hls; hls_mp4_buffer_size 100; hls_mp4_max_buffer_size 200; }}
             location /frames/ {{ alias html/; hls; hls_buffers 3 500; }}
             location /off/ {{ alias html/; }}"
        ),
    )
}

/// Data of one PES.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pes {
    presented: u64,
    decoded: u64,
    data: Vec<u8>,
}

/// Reads a transport stream: PES by PID, 0x100 and 0x101.
fn demux(stream: &[u8]) -> [Vec<Pes>; 2] {
    assert!(stream.len().is_multiple_of(188) && !stream.is_empty());
    let mut open: [Vec<Vec<u8>>; 2] = Default::default();
    let mut counters = [None; 2];
    for (number, packet) in stream.chunks(188).enumerate() {
        assert_eq!(packet[0], 0x47);
        let pid = u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
        let skipped = if packet[3] & 0x20 != 0 { 1 + usize::from(packet[4]) } else { 0 };
        let payload = &packet[4 + skipped..];
        if number < 2 {
            assert_eq!(pid, if number == 0 { 0 } else { 0x1000 });
            continue;
        }
        let stream = usize::from(pid - 0x100);
        let counter = packet[3] & 0x0f;
        assert_eq!(counter, counters[stream].map_or(0, |last: u8| (last + 1) & 0x0f));
        counters[stream] = Some(counter);
        if packet[1] & 0x40 != 0 {
            open[stream].push(payload.to_vec())
        } else {
            open[stream].last_mut().unwrap().extend_from_slice(payload)
        }
    }
    let stamp = |pes: &[u8]| {
        let part = |at: usize| u64::from(u16::from_be_bytes([pes[at], pes[at + 1]])) >> 1;
        u64::from(pes[0] >> 1 & 7) << 30 | part(1) << 15 | part(3)
    };
    open.map(|all| {
        all.into_iter()
            .map(|pes| {
                assert_eq!(pes[..3], [0, 0, 1]);
                let presented = stamp(&pes[9..]);
                let decoded = if pes[7] & 0x40 != 0 { stamp(&pes[14..]) } else { presented };
                Pes { presented, decoded, data: pes[9 + usize::from(pes[8])..].to_vec() }
            })
            .collect()
    })
}

/// Pictures as a transport stream has them, with their times.
fn expected_video(track: &ReadTrack, media_time: u64) -> Vec<Pes> {
    let code = [0, 0, 0, 1];
    let pes = |sample: &tw_testkit::mp4::Sample| {
        let mut data = [&code[..], &[9, 0xf0]].concat();
        if sample.is_key {
            data.extend([&code[..], SPS, &code, PPS].concat());
        }
        data.extend([&code[..], &sample.data[4..]].concat());
        let decoded = BASE + sample.time * CLOCK / 600 - media_time * CLOCK / 600;
        Pes { presented: decoded + u64::from(sample.offset) * CLOCK / 600, decoded, data }
    };
    track.samples.iter().map(pes).collect()
}

/// Frames of AAC with their headers.
fn expected_audio(track: &ReadTrack) -> Vec<u8> {
    let frame = |sample: &tw_testkit::mp4::Sample| {
        let len = sample.data.len() as u32 + 7;
        let head =
            [0xff, 0xf1, 0x50, 0x80 | (len >> 11) as u8, (len >> 3) as u8, (len << 5) as u8 | 0x1f, 0xfc];
        [&head[..], &sample.data].concat()
    };
    track.samples.iter().flat_map(frame).collect()
}

fn file(server: &Server, name: &str) -> Vec<u8> {
    fs::read(server.prefix().join("html").join(name)).unwrap()
}

/// URIs in a playlist.
fn uris(playlist: &str) -> Vec<&str> {
    playlist.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[test]
fn hls_segments_of_a_playlist_are_the_movie() {
    let server = serve("");
    for (base, name, uri) in [("/", "v.mp4", "v.mp4"), ("/d/", "d/v b.MOV", "v%20b.MOV")] {
        for query in ["", "?len=1.5", "?len=0.001", "?len=100"] {
            let playlist = get(&server, &format!("{base}{uri}.m3u8{query}"));
            assert_eq!(playlist.field("Content-Type"), Some("application/vnd.apple.mpegurl"));
            assert!(playlist.field("Last-Modified").is_some());
            let text = playlist.text();
            assert!(text.ends_with("#EXT-X-ENDLIST\n"), "{text}");
            let mut video = Vec::new();
            let mut audio = Vec::new();
            for fragment in uris(&text) {
                let segment = get(&server, &format!("{base}{fragment}"));
                assert_eq!(
                    (segment.status, segment.field("Content-Type")),
                    (200, Some("video/mp2t")),
                    "{fragment}"
                );
                let [pictures, sound] = demux(&segment.body);
                let begins_with_key = pictures.first().is_none_or(|first| first.data[10..].starts_with(SPS));
                assert!(begins_with_key, "{fragment}");
                video.extend(pictures);
                audio.extend(sound);
            }
            let all = read(&file(&server, name));
            let (of_video, of_audio) = if base == "/" { (&all[0], &all[1]) } else { (&all[1], &all[0]) };
            assert_eq!(video, expected_video(of_video, 60), "{query}");
            assert_eq!(
                audio.iter().flat_map(|pes| pes.data.clone()).collect::<Vec<_>>(),
                expected_audio(of_audio)
            );
            assert_eq!((audio[0].presented, audio[0].decoded), (BASE, BASE));
        }
    }
}

#[test]
fn hls_fragments_end_with_key_frames() {
    let server = serve("");
    let (_, text) = page(&server, "/mute.mp4.m3u8");
    assert_eq!(uris(&text), ["mute.mp4.ts?start=0.000&end=6.000", "mute.mp4.ts?start=6.000&end=6.500"]);
    assert!(text.starts_with("#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:6\n"), "{text}");
    let (_, text) = page(&server, "/args/mute.mp4.m3u8?a=1&START=1.6&end=4.2&offset=-1&b=2");
    assert_eq!(
        uris(&text),
        ["mute.mp4.ts?start=1.500&end=4.200&a=1&b=2"],
        "the next key frame behind two seconds is behind the end: {text}"
    );
    assert!(text.contains("#EXT-X-START:TIME-OFFSET=-1.000\n\n#EXTINF:2.700,\n"), "{text}");
    let (_, text) = page(&server, "/song.m4a.m3u8?len=3&end=5");
    assert_eq!(uris(&text), ["song.m4a.ts?start=0.000&end=3.018", "song.m4a.ts?start=3.018&end=5.000"]);
    // A start in the middle of a group of pictures moves to its key frame. Without an end, the segment reaches to the
    // end.
    let [pictures, _] = demux(&get(&server, "/mute.mp4.ts?start=5").body);
    let expected = expected_video(&read(&file(&server, "mute.mp4"))[0], 60);
    assert_eq!(pictures, expected[45..]);
    let long = get(&server, "/long.m4a.ts?start=100&end=101");
    let frames = &read(&file(&server, "long.m4a"))[0].samples;
    let units = |second: u64| frames.iter().position(|frame| frame.time >= second * 44_100).unwrap();
    let part = ReadTrack { duration: 0, media_time: 0, samples: frames[units(100)..units(101)].to_vec() };
    let [sound, _] = demux(&long.body);
    assert_eq!(sound.iter().flat_map(|pes| pes.data.clone()).collect::<Vec<_>>(), expected_audio(&part));
    assert_eq!(page(&server, "/long.m4a.m3u8").0, 200);
}

#[test]
fn hls_leaves_other_requests_alone() {
    let server = serve("");
    assert_eq!(page(&server, "/other.ts"), (200, "text".to_owned()));
    assert_eq!(get(&server, "/v.mp4").body, file(&server, "v.mp4"));
    assert_eq!(page(&server, "/off/v.mp4.m3u8").0, 404);
    assert_eq!(page(&server, "/none.mp4.m3u8").0, 404);
    assert_eq!(page(&server, "/none.mp4.ts").0, 404);
    assert_eq!(request(&server, "POST /v.mp4.m3u8", &["Content-Length: 0"]).status, 405);
    let head = request(&server, "HEAD /v.mp4.ts", &[]);
    assert_eq!((head.status, head.field("Content-Type")), (200, Some("video/mp2t")));
    let range = request(&server, "GET /v.mp4.m3u8", &["Range: bytes=0-3"]);
    assert_eq!((range.status, range.field("Accept-Ranges")), (200, None));
    let playlist = get(&server, "/v.mp4.m3u8");
    let same = format!("If-None-Match: {}", playlist.field("ETag").unwrap());
    assert_eq!(request(&server, "GET /v.mp4.m3u8", &[&same]).status, 304);
}

#[test]
fn hls_refuses_what_cannot_be_streamed() {
    let server = serve("");
    let html = server.prefix().join("html");
    for (target, status, line) in [
        ("/v.mp4.ts?start=7", 404, "no data between start time and end time in"),
        ("/v.mp4.m3u8?start=7", 404, "no data between start time and end time in"),
        ("/v.mp4.ts?start=2&end=1", 404, "no data between start time and end time in"),
        ("/plain.mp4.m3u8", 500, "no tracks that can be streamed were found in"),
        ("/small/v.mp4.ts", 500, ", you may want to increase hls_mp4_max_buffer_size"),
    ] {
        assert_eq!(page(&server, target).0, status, "{target}");
        server.wait_error_log(line).unwrap();
    }
    for (name, content, line) in [
        ("empty", Vec::new(), "no mp4 trak atoms were found in"),
        ("text", b"nothing at all".to_vec(), "mp4 atom too large:"),
        ("many", boxed(b"free", "").repeat(65_537), "too many mp4 atoms in"),
    ] {
        fs::write(html.join(format!("{name}.mp4")), content).unwrap();
        assert_eq!(page(&server, &format!("/{name}.mp4.m3u8")).0, 500, "{name}");
        server.wait_error_log(line).unwrap();
    }
    // A frame that is longer than all buffers, and frames that are not in the file.
    let mut client = server.connect().unwrap();
    client.send("GET /frames/v.mp4.ts HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.read_until_close().unwrap();
    server.wait_error_log("a frame of 2000 bytes is larger than \"hls_buffers\"").unwrap();
    let cut = file(&server, "v.mp4");
    fs::write(html.join("cut.mp4"), &cut[..cut.len() - 20_000]).unwrap();
    client = server.connect().unwrap();
    client.send("GET /cut.mp4.ts HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.read_until_close().unwrap();
    server.wait_error_log("a frame is not in the file").unwrap();
}

#[test]
fn hls_directives_are_checked() {
    for (conf, error) in [
        ("hls;", "\"hls\" directive is not allowed here"),
        ("hls_fragment 0;", "\"hls_fragment\" directive invalid value"),
        ("hls_fragment x;", "\"hls_fragment\" directive invalid value"),
        ("hls_buffers 0 1m;", "\"hls_buffers\" directive invalid value"),
        ("hls_forward_args yes;", "invalid value \"yes\" in \"hls_forward_args\" directive"),
        ("location / { hls on; }", "invalid number of arguments in \"hls\" directive"),
        ("hls_mp4_buffer_size 1x;", "\"hls_mp4_buffer_size\" directive invalid value"),
    ] {
        assert!(refusal(conf).contains(error), "{conf}: {}", refusal(conf));
    }
}
