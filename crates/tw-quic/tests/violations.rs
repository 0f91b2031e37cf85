//! Violations of RFC 9000 and 9001 by a client, and the error codes that it gets: the cases of h3spec for the transport, and attacks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

#[path = "../../../fuzz/checks/quic.rs"]
#[allow(dead_code, reason = "the check itself is another test")]
mod quic;

use quic::{SOURCE, Server, client, configs, shake_hands};
use rustls::pki_types::ServerName;
use tw_quic::ConnectionError;
use tw_testkit::quic_raw::{Closed, Level, Parameter, RawClient, frame, parameters, varint};

const FLOW_CONTROL_ERROR: u64 = 3;
const STREAM_LIMIT_ERROR: u64 = 4;
const STREAM_STATE_ERROR: u64 = 5;
const FINAL_SIZE_ERROR: u64 = 6;
const FRAME_ENCODING_ERROR: u64 = 7;
const TRANSPORT_PARAMETER_ERROR: u64 = 8;
const CONNECTION_ID_LIMIT_ERROR: u64 = 9;
const PROTOCOL_VIOLATION: u64 = 10;
const CRYPTO_BUFFER_EXCEEDED: u64 = 13;
const UNEXPECTED_MESSAGE: u64 = 0x10a;
const NO_APPLICATION_PROTOCOL: u64 = 0x178;
const MISSING_EXTENSION: u64 = 0x16d;

/// End of a connection whose client sends these frames after its handshake.
fn closed_by(packets: &[&[u8]]) -> Option<Closed> {
    let (mut server, mut client) = (Server::new(), client());
    shake_hands(&mut server, &mut client);
    assert!(client.is_connected());
    for frames in packets {
        let datagram = client.datagram(Level::Application, frames).unwrap();
        for answer in server.exchange(&datagram) {
            client.receive(&answer);
        }
    }
    client.closed
}

fn stream(kind: u64, numbers: &[u64], data: &[u8]) -> Vec<u8> {
    [&frame(kind, numbers)[..], data].concat()
}

#[test]
fn frames_that_violate_the_protocol() {
    let new_id = |sequence, retire, len: usize| {
        let mut frame = frame(0x18, &[sequence, retire]);
        frame.push(len as u8);
        frame.extend(vec![9; len + 16]);
        frame
    };
    let cases: Vec<(&str, Vec<u8>, &[u64])> = vec![
        ("unknown frame", frame(0x20, &[]), &[FRAME_ENCODING_ERROR]),
        ("no frame at all", Vec::new(), &[PROTOCOL_VIOLATION]),
        ("HANDSHAKE_DONE", frame(0x1e, &[]), &[PROTOCOL_VIOLATION]),
        ("NEW_TOKEN", stream(7, &[3], b"abc"), &[PROTOCOL_VIOLATION]),
        ("ACK of a packet that was not sent", frame(2, &[9999, 0, 0, 0]), &[PROTOCOL_VIOLATION]),
        ("MAX_STREAM_DATA for a stream of its own", frame(0x11, &[2, 100]), &[STREAM_STATE_ERROR]),
        ("MAX_STREAM_DATA for a stream that does not exist", frame(0x11, &[1, 100]), &[STREAM_STATE_ERROR]),
        ("STOP_SENDING for a stream of its own", frame(5, &[2, 1]), &[STREAM_STATE_ERROR]),
        ("STOP_SENDING for a stream that does not exist", frame(5, &[1, 1]), &[STREAM_STATE_ERROR]),
        ("RESET_STREAM of a stream of the server", frame(4, &[3, 1, 0]), &[STREAM_STATE_ERROR]),
        ("STREAM of the server", stream(0xa, &[3, 1], b"x"), &[STREAM_STATE_ERROR]),
        ("STREAM that the server has not opened", stream(0xa, &[1, 1], b"x"), &[STREAM_STATE_ERROR]),
        ("too many streams", stream(0xa, &[4000, 1], b"x"), &[STREAM_LIMIT_ERROR]),
        (
            "STREAM with a huge offset",
            stream(0xe, &[0, (1 << 62) - 1, 1], b"x"),
            &[FRAME_ENCODING_ERROR, FLOW_CONTROL_ERROR],
        ),
        ("more than the window of the stream", stream(0xe, &[0, 5000, 1], b"x"), &[FLOW_CONTROL_ERROR]),
        (
            "more than the window of the connection",
            [
                stream(0xe, &[0, 4000, 1], b"x"),
                stream(0xe, &[4, 4000, 1], b"x"),
                stream(0xe, &[8, 4000, 1], b"x"),
            ]
            .concat(),
            &[FLOW_CONTROL_ERROR],
        ),
        ("RESET_STREAM beyond the window", frame(4, &[0, 1, 5000]), &[FLOW_CONTROL_ERROR]),
        (
            "data behind the end",
            [stream(0xb, &[2, 1], b"x"), stream(0xe, &[2, 5, 1], b"x")].concat(),
            &[FINAL_SIZE_ERROR],
        ),
        (
            "end before data",
            [stream(0xe, &[2, 9, 1], b"x"), stream(0xb, &[2, 1], b"x")].concat(),
            // The engine passes over such an end.
            &[],
        ),
        (
            "reset with another size",
            [stream(0xe, &[2, 9, 1], b"x"), frame(4, &[2, 1, 3])].concat(),
            &[FINAL_SIZE_ERROR],
        ),
        (
            "MAX_STREAMS beyond 2^60",
            frame(0x12, &[(1 << 60) + 1]),
            &[FRAME_ENCODING_ERROR, STREAM_LIMIT_ERROR],
        ),
        (
            "STREAMS_BLOCKED beyond 2^60",
            frame(0x16, &[(1 << 60) + 1]),
            &[FRAME_ENCODING_ERROR, STREAM_LIMIT_ERROR],
        ),
        (
            "NEW_CONNECTION_ID that retires later ones",
            new_id(1, 2, 8),
            &[FRAME_ENCODING_ERROR, PROTOCOL_VIOLATION],
        ),
        ("NEW_CONNECTION_ID without one", new_id(1, 0, 0), &[FRAME_ENCODING_ERROR, PROTOCOL_VIOLATION]),
        ("NEW_CONNECTION_ID of 21 bytes", new_id(1, 0, 21), &[FRAME_ENCODING_ERROR]),
        (
            "more connection IDs than are stored",
            // The identifiers are as long as the client's own one, which the server retires for them.
            (1..9).flat_map(|sequence| new_id(sequence, 0, SOURCE.len())).collect(),
            &[CONNECTION_ID_LIMIT_ERROR],
        ),
        ("RETIRE_CONNECTION_ID that was not issued", frame(0x19, &[500]), &[PROTOCOL_VIOLATION]),
        ("CRYPTO beyond the buffer", stream(6, &[1 << 20, 1], b"x"), &[CRYPTO_BUFFER_EXCEEDED]),
        ("KeyUpdate of TLS", stream(6, &[0, 5], &[24, 0, 0, 1, 0]), &[UNEXPECTED_MESSAGE]),
        ("CRYPTO with a new hello", stream(6, &[0, 4], &[1, 0, 0, 0]), &[UNEXPECTED_MESSAGE, 0x132]),
        ("cut frame", vec![4, 0, 0, 0xc0, 0], &[FRAME_ENCODING_ERROR]),
        ("PATH_RESPONSE that nobody has asked for", [vec![0x1b], vec![1; 8]].concat(), &[]),
    ];
    for (name, frames, codes) in cases {
        let closed = closed_by(&[&frames]);
        match codes {
            [] => assert_eq!(closed, None, "{name}"),
            codes => assert!(
                codes.iter().any(|code| closed == Some(Closed::Transport(*code))),
                "{name}: {closed:?} instead of {codes:?}"
            ),
        }
    }
}

#[test]
fn frames_that_initial_packets_must_not_have() {
    for (name, frames) in [
        ("STREAM", stream(0xa, &[0, 1], b"x")),
        ("MAX_DATA", frame(0x10, &[100])),
        ("NEW_TOKEN", stream(7, &[1], b"x")),
        ("HANDSHAKE_DONE", frame(0x1e, &[])),
        ("PATH_CHALLENGE", [vec![0x1a], vec![1; 8]].concat()),
    ] {
        let (mut server, mut client) = (Server::new(), client());
        let mut hello = client.datagrams();
        let first = hello.remove(0);
        server.exchange(&first).iter().for_each(|answer| client.receive(answer));
        hello.iter().for_each(|datagram| {
            server.exchange(datagram).iter().for_each(|answer| client.receive(answer));
        });
        let datagram = client.datagram(Level::Initial, &frames).unwrap();
        server.exchange(&datagram).iter().for_each(|answer| client.receive(answer));
        assert_eq!(client.closed, Some(Closed::Transport(PROTOCOL_VIOLATION)), "{name}");
    }
}

/// End of the handshake of a client with these transport parameters.
fn closed_with(parameters: &[Parameter]) -> Option<Closed> {
    let mut client = RawClient::new(configs().1.clone(), "localhost", parameters, SOURCE);
    let mut server = Server::new();
    shake_hands(&mut server, &mut client);
    client.closed
}

#[test]
fn transport_parameters_that_violate_the_protocol() {
    let with = |id: u64, value: Vec<u8>| {
        let mut all = parameters(SOURCE);
        all.retain(|(candidate, _)| *candidate != id);
        all.push((id, value));
        all
    };
    let mut twice = parameters(SOURCE);
    twice.push((0x04, varint(5)));
    let mut without_source = parameters(SOURCE);
    without_source.retain(|(id, _)| *id != 0x0f);
    for (name, parameters) in [
        ("original_destination_connection_id", with(0x00, vec![1; 8])),
        ("preferred_address", with(0x0d, vec![1; 61])),
        ("retry_source_connection_id", with(0x10, vec![1; 8])),
        ("stateless_reset_token", with(0x02, vec![1; 16])),
        ("max_udp_payload_size below 1200", with(0x03, varint(1199))),
        ("ack_delay_exponent above 20", with(0x0a, varint(21))),
        ("max_ack_delay of 2^14", with(0x0b, varint(1 << 14))),
        ("active_connection_id_limit below 2", with(0x0e, varint(1))),
        ("initial_max_streams_bidi beyond 2^60", with(0x08, varint((1 << 60) + 1))),
        ("initial_max_streams_uni beyond 2^60", with(0x09, varint((1 << 60) + 1))),
        ("another initial_source_connection_id", with(0x0f, b"other".to_vec())),
        ("no initial_source_connection_id", without_source),
        ("a parameter twice", twice),
        ("a cut number", with(0x04, vec![0xc0, 1])),
    ] {
        assert_eq!(closed_with(&parameters), Some(Closed::Transport(TRANSPORT_PARAMETER_ERROR)), "{name}");
    }
    assert_eq!(closed_with(&parameters(SOURCE)), None);
}

#[test]
fn hello_without_a_common_protocol_is_refused() {
    for (protocols, code) in
        [(vec![b"other".to_vec()], NO_APPLICATION_PROTOCOL), (Vec::new(), NO_APPLICATION_PROTOCOL)]
    {
        let mut config = (*configs().1).clone();
        config.alpn_protocols = protocols;
        let mut client = RawClient::new(config.into(), "localhost", &parameters(SOURCE), SOURCE);
        let mut server = Server::new();
        shake_hands(&mut server, &mut client);
        assert_eq!(client.closed, Some(Closed::Transport(code)));
    }
}

#[test]
fn reserved_bits_must_be_zero() {
    let connected = || {
        let (mut server, mut client) = (Server::new(), client());
        shake_hands(&mut server, &mut client);
        (server, client)
    };
    for (level, bits, (mut server, mut client)) in
        [(Level::Handshake, 0x0c, before_finished()), (Level::Application, 0x18, connected())]
    {
        let ping = frame(1, &[]);
        let datagram = client.datagram_with(level, &ping, |header| header[0] |= bits);
        server.exchange(&datagram.unwrap()).iter().for_each(|answer| client.receive(answer));
        assert_eq!(client.closed, Some(Closed::Transport(PROTOCOL_VIOLATION)), "{level:?}");
    }
}

/// A client that has the keys of the handshake, and has not sent what completes it.
fn before_finished() -> (Server, RawClient) {
    let (mut server, mut client) = (Server::new(), client());
    for datagram in client.datagrams() {
        server.exchange(&datagram).iter().for_each(|answer| client.receive(answer));
    }
    (server, client)
}

#[test]
fn frames_and_messages_that_handshake_packets_must_not_have() {
    for (name, frames, code) in [
        ("PATH_CHALLENGE", [vec![0x1a], vec![1; 8]].concat(), PROTOCOL_VIOLATION),
        ("STREAM", stream(0xa, &[0, 1], b"x"), PROTOCOL_VIOLATION),
        ("NEW_TOKEN", stream(7, &[1], b"x"), PROTOCOL_VIOLATION),
        ("KeyUpdate of TLS", stream(6, &[0, 5], &[24, 0, 0, 1, 0]), UNEXPECTED_MESSAGE),
        ("EndOfEarlyData of TLS", stream(6, &[0, 4], &[5, 0, 0, 0]), UNEXPECTED_MESSAGE),
    ] {
        let (mut server, mut client) = before_finished();
        let datagram = client.datagram(Level::Handshake, &frames).unwrap();
        server.exchange(&datagram).iter().for_each(|answer| client.receive(answer));
        assert_eq!(client.closed, Some(Closed::Transport(code)), "{name}");
    }
}

#[test]
fn hello_without_transport_parameters_is_refused() {
    // The ClientHello of TLS over TCP, without the header of its record, has no transport parameters.
    let name = ServerName::try_from("localhost").unwrap();
    let mut tcp = rustls::ClientConnection::new(configs().1.clone(), name).unwrap();
    let mut record = Vec::new();
    tcp.write_tls(&mut record).unwrap();
    let hello = &record[5..];
    let (mut server, mut client) = (Server::new(), client());
    for (at, part) in hello.chunks(1000).enumerate() {
        let crypto = stream(6, &[at as u64 * 1000, part.len() as u64], part);
        let datagram = client.datagram(Level::Initial, &crypto).unwrap();
        server.exchange(&datagram).iter().for_each(|answer| client.receive(answer));
    }
    assert_eq!(client.closed, Some(Closed::Transport(MISSING_EXTENSION)));
}

/// Lets a client that is connected send the packets of `make`, and returns the bytes of the answers and the server.
fn flood(count: usize, mut make: impl FnMut(usize, &mut RawClient) -> Vec<u8>) -> (usize, Server, RawClient) {
    let (mut server, mut client) = (Server::new(), client());
    shake_hands(&mut server, &mut client);
    server.sent = 0;
    for at in 0..count {
        let frames = make(at, &mut client);
        let datagram = client.datagram(Level::Application, &frames).unwrap();
        server.exchange(&datagram).iter().for_each(|answer| client.receive(answer));
    }
    (server.sent, server, client)
}

#[test]
fn floods_of_frames_cost_no_more_than_they_send() {
    let path_challenges = |_, _: &mut RawClient| [vec![0x1a], vec![1; 8]].concat().repeat(100);
    let (sent, server, _) = flood(100, path_challenges);
    assert!(sent <= server.received, "PATH_CHALLENGE: {sent}");
    // Each retired connection ID is replaced by another one; none is kept beyond the limit.
    let retire = |at: usize, _: &mut RawClient| frame(0x19, &[at as u64]);
    let (sent, server, client) = flood(300, retire);
    assert!(sent <= server.received * 3, "RETIRE_CONNECTION_ID: {sent}");
    assert!(client.issued.len() <= 310, "{}", client.issued.len());
    let pings = |_, _: &mut RawClient| frame(1, &[]).repeat(1000);
    let (sent, server, _) = flood(100, pings);
    assert!(sent <= server.received, "PING: {sent}");
    let resets = |at: usize, _: &mut RawClient| {
        let id = at as u64 * 4;
        [stream(0xa, &[id, 1], b"x"), frame(4, &[id, 7, 1])].concat()
    };
    let (_, server, _) = flood(1000, resets);
    // Streams are open until their ends are acknowledged.
    let reason = server.connections[0].close_reason();
    let is_limit = |error: &ConnectionError| {
        matches!(error, ConnectionError::Violation { code: STREAM_LIMIT_ERROR, .. })
    };
    assert!(reason.as_ref().is_some_and(is_limit), "{reason:?}");
    assert_eq!(server.endpoint.statistics().panics, 0);
    // Small parts of a stream with gaps: the engine joins or refuses them.
    let gaps = |at: usize, _: &mut RawClient| stream(0xe, &[0, at as u64 * 2, 1], b"x");
    let (_, server, _) = flood(2000, gaps);
    assert_eq!(server.endpoint.statistics().panics, 0);
}

#[test]
fn path_challenge_from_another_address_gets_three_times_its_bytes() {
    for at in 0..100 {
        // The engine changes its keys after 10 to 1,000 packets, which the scripted client cannot follow.
        let (mut server, mut client) = (Server::new(), client());
        shake_hands(&mut server, &mut client);
        let challenge = [vec![0x1a], vec![at; 8]].concat();
        // A client that may have forged the address, and one that does as it should.
        for padding in [0, 1200] {
            // Packets without an acknowledgement would be sent again beside the next answer.
            let acknowledgement = client.acknowledgement(Level::Application);
            let datagram = client.datagram(Level::Application, &acknowledgement).unwrap();
            server.exchange(&datagram);
            let frames = [challenge.clone(), vec![0; padding]].concat();
            let datagram = client.datagram(Level::Application, &frames).unwrap();
            let other = SocketAddr::from(([203, 0, 113, at], 443));
            let answers = server.exchange_from(other, &datagram);
            let sent: Vec<_> = answers.into_iter().filter(|(to, _)| *to == other).collect();
            let [(_, answer)] = &sent[..] else { panic!("one answer") };
            assert!(answer.len() <= 3 * datagram.len(), "{} for {}", answer.len(), datagram.len());
            assert!(answer.len() >= padding, "{}", answer.len());
            client.frames.clear();
            client.receive(answer);
            let response = client.frames.iter().find(|(_, kind, _)| *kind == 0x1b);
            assert_eq!(response.map(|(_, _, token)| &token[..]), Some(&[at; 8][..]));
            server.pass(Duration::from_millis(10));
        }
    }
}

#[test]
fn acknowledgements_of_skipped_packets_are_found() {
    // An optimistic client acknowledges whatever may have been sent.
    let (mut server, mut client) = (Server::new(), client());
    shake_hands(&mut server, &mut client);
    for largest in 0..2000 {
        let mut frames = frame(2, &[largest, 0, 0, largest.min(100)]);
        frames.extend(stream(0xa, &[largest % 50 * 4, 1], b"x"));
        let datagram = client.datagram(Level::Application, &frames).unwrap();
        server.exchange(&datagram).iter().for_each(|answer| client.receive(answer));
        if server.connections[0].close_reason().is_some() {
            break;
        }
    }
    let reason = server.connections[0].close_reason();
    let is_violation = |error: &ConnectionError| {
        matches!(error, ConnectionError::Violation { code: PROTOCOL_VIOLATION, .. })
    };
    assert!(reason.as_ref().is_some_and(is_violation), "{reason:?}");
}

#[test]
fn half_hellos_are_bounded_and_forgotten() {
    let mut server = Server::new();
    for at in 0..2000u32 {
        let mut client = client();
        client.destination = at.to_be_bytes().repeat(2);
        client.set_initial_keys();
        let datagram = client.datagram(Level::Initial, &stream(6, &[0, 4], &[1, 0, 4, 0])).unwrap();
        server.exchange(&datagram);
    }
    assert!(server.endpoint.handshakes() <= 256, "{}", server.endpoint.handshakes());
    server.pass(Duration::from_secs(3));
    assert_eq!(server.endpoint.handshakes(), 0);
    let mut client = client();
    shake_hands(&mut server, &mut client);
    assert!(client.is_connected());
}
