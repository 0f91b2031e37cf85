//! Priorities of RFC 9218: order of data when several streams of a connection have some.

use tw_testkit::Server;
use tw_testkit::http2::{END_STREAM, Frames, frame, get as get_frame, hpack, kind};

use crate::support::{server, start_server};

const SIZE: usize = 16 << 20;

/// Initial window of each stream; the connection has a larger one.
const FIRST: usize = 1000;

const PRIORITY_UPDATE: u8 = 0x10;

/// A server with two large files, and a connection to it.
fn connect() -> (Server, Frames) {
    let large = vec![b'x'; SIZE];
    let server = start_server(server().file("html/one", &large).file("html/two", &large), "http2 on;");
    let frames = connect_narrow(&server);
    (server, frames)
}

/// A connection whose streams have an initial window of [`FIRST`].
fn connect_narrow(server: &Server) -> Frames {
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(initial_window_size(FIRST)).unwrap();
    frames
}

/// SETTINGS_INITIAL_WINDOW_SIZE, which changes the windows of all streams at once.
fn initial_window_size(size: usize) -> Vec<u8> {
    frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &(size as u32).to_be_bytes()].concat())
}

/// Opens the windows of a connection and its streams for all remaining data.
fn open_windows(frames: &mut Frames) {
    let room = 1_u32 << 30;
    let of_all = frame(kind::WINDOW_UPDATE, 0, 0, &room.to_be_bytes());
    frames.send([of_all, initial_window_size(room as usize)].concat()).unwrap();
}

/// Bytes received on streams 1 and 3 until one of them had ended, and the number of that one. Windows open when both
/// have sent something, so that reads of the disk do not decide the order.
fn first_to_end(frames: &mut Frames) -> (u32, [usize; 2]) {
    let mut came = [0; 2];
    loop {
        let frame = frames.next_frame().unwrap().expect("both are answered");
        if frame.kind == kind::DATA {
            came[(frame.stream / 2) as usize] += frame.payload.len();
            if frame.flags & END_STREAM != 0 {
                return (frame.stream, came);
            }
            if came == [FIRST; 2] {
                open_windows(frames);
            }
        }
    }
}

fn update(stream: u32, value: &str) -> Vec<u8> {
    frame(PRIORITY_UPDATE, 0, 0, &[&stream.to_be_bytes()[..], value.as_bytes()].concat())
}

#[test]
fn more_urgent_stream_overtakes() {
    let (_server, mut frames) = connect();
    let mut both = get_frame(1, "/one", &[("priority", "u=6")]);
    both.extend(get_frame(3, "/two", &[("priority", "u=1")]));
    frames.send(both).unwrap();
    let (first, came) = first_to_end(&mut frames);
    assert_eq!((first, came[1]), (3, SIZE));
    assert!(came[0] < SIZE / 2, "{came:?}");
    assert_eq!(first_to_end(&mut frames).0, 1);
}

#[test]
fn streams_without_priority_share() {
    let (_server, mut frames) = connect();
    frames.send([get_frame(1, "/one", &[]), get_frame(3, "/two", &[])].concat()).unwrap();
    let (_, came) = first_to_end(&mut frames);
    assert!(came.iter().all(|came| *came > SIZE / 2), "{came:?}");
}

#[test]
fn non_incremental_streams_of_one_urgency_are_sequential() {
    let (_server, mut frames) = connect();
    let said = [("priority", "u=3")];
    frames.send([get_frame(1, "/one", &said), get_frame(3, "/two", &said)].concat()).unwrap();
    let (first, came) = first_to_end(&mut frames);
    assert_eq!((first, came[0]), (1, SIZE));
    assert!(came[1] < SIZE / 2, "{came:?}");
}

#[test]
fn priority_update_works_before_and_after_the_request() {
    let (_server, mut frames) = connect();
    let said = [("priority", "u=3")];
    frames
        .send([update(3, "u=0"), get_frame(1, "/one", &said), get_frame(3, "/two", &said)].concat())
        .unwrap();
    let (first, came) = first_to_end(&mut frames);
    assert_eq!(first, 3);
    assert!(came[0] < SIZE / 2, "{came:?}");

    let (_server, mut frames) = connect();
    frames
        .send([get_frame(1, "/one", &said), get_frame(3, "/two", &said), update(1, "u=7")].concat())
        .unwrap();
    let (first, came) = first_to_end(&mut frames);
    assert_eq!(first, 3);
    assert!(came[0] < SIZE / 2, "{came:?}");
}

#[test]
fn priority_of_the_response_has_precedence() {
    let large = vec![b'x'; SIZE];
    let server = start_server(
        server().file("html/one", &large).file("html/two", &large),
        "http2 on; location /two { add_header Priority u=0; }",
    );
    let mut frames = connect_narrow(&server);
    let said = [("priority", "u=3")];
    frames.send([get_frame(1, "/one", &said), get_frame(3, "/two", &said)].concat()).unwrap();
    let (first, came) = first_to_end(&mut frames);
    assert_eq!((first, came[1]), (3, SIZE));
    assert!(came[0] < SIZE / 2, "{came:?}");
}

#[test]
fn small_response_interleaves_with_large_ones() {
    let (server, mut frames) = connect();
    frames.send(get_frame(1, "/one", &[])).unwrap();
    let mut before = 0;
    while before < FIRST {
        before += frames.wait(kind::DATA).unwrap().unwrap().payload.len();
    }
    // The large one has begun and waits for room, which there is when the small one is ready: it may have one more turn at most.
    frames.send(get_frame(3, "/none", &[("priority", "u=0")])).unwrap();
    assert_eq!(frames.wait(kind::HEADERS).unwrap().unwrap().stream, 3);
    open_windows(&mut frames);
    let mut ahead = 0;
    loop {
        let frame = frames.wait(kind::DATA).unwrap().unwrap();
        if frame.stream == 3 {
            break;
        }
        ahead += frame.payload.len();
    }
    assert!(ahead < SIZE / 16, "{ahead} bytes of the large one came before");
    drop(server);
}

#[test]
fn malformed_priority_update_ends_the_connection() {
    const PROTOCOL_ERROR: u32 = 1;
    const FRAME_SIZE_ERROR: u32 = 6;
    let (server, _) = connect();
    for (wrong, code) in [
        (update(0, "u=1"), PROTOCOL_ERROR),
        (frame(PRIORITY_UPDATE, 0, 1, &[0, 0, 0, 1]), PROTOCOL_ERROR),
        (frame(PRIORITY_UPDATE, 0, 0, &[0, 0, 1]), FRAME_SIZE_ERROR),
    ] {
        let mut frames = Frames::connect(server.addr()).unwrap();
        frames.send(&wrong).unwrap();
        assert_eq!(frames.wait(kind::GOAWAY).unwrap().unwrap().code(), Some(code), "{wrong:?}");
    }
    server.wait_error_log("client sent PRIORITY_UPDATE frame").unwrap();
    // A PRIORITY_UPDATE for a stream that is never opened, or with an invalid value, is ignored.
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send([update(99, "u=1"), update(1, "\u{7f}=;,,"), update(1, &"x".repeat(4000))].concat()).unwrap();
    let block = hpack(&[(":method", "HEAD"), (":scheme", "http"), (":path", "/one"), (":authority", "a")]);
    frames.send(frame(kind::HEADERS, END_STREAM | 4, 1, &block)).unwrap();
    assert_eq!(frames.wait(kind::HEADERS).unwrap().unwrap().stream, 1);
}
