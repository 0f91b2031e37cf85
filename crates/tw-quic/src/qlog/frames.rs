//! Frames of a packet (RFC 9000, section 19) as JSON objects. What cannot be read ends the list: the engine closes such a connection.

use std::io::Write;
use std::time::Duration;

use bytes::Buf;

use super::{Hex, Json, Millis};
use crate::varint::read_varint;

/// Frames of one packet that are recorded; a packet may consist of a thousand small ones.
pub(crate) const FRAMES_MAX: usize = 64;
/// Ranges of one acknowledgement that are recorded.
pub(crate) const RANGES_MAX: u64 = 64;
/// Unit of the delay of an acknowledgement: the default of both sides (RFC 9000, section 18.2).
const ACK_DELAY_UNIT_US: u64 = 8;

/// Appends the frames, with commas between them.
pub(super) fn write(mut payload: &[u8], out: &mut Vec<u8>) {
    for n in 0..FRAMES_MAX {
        if payload.is_empty() {
            return;
        }
        let before = out.len();
        if n > 0 {
            out.push(b',');
        }
        if frame(&mut payload, out).is_none() {
            out.truncate(before);
            return;
        }
    }
}

/// Appends the next frame. `None` if it cannot be read.
fn frame(payload: &mut &[u8], out: &mut Vec<u8>) -> Option<()> {
    let kind = read_varint(payload)?;
    // A vector takes everything.
    let mut put = |text: std::fmt::Arguments<'_>| drop(out.write_fmt(text));
    let mut int = || read_varint(payload);
    match kind {
        0 => {
            let rest = payload.iter().take_while(|byte| **byte == 0).count();
            payload.advance(rest);
            let len = rest + 1;
            put(format_args!(r#"{{"frame_type":"padding","payload_length":{len}}}"#));
        }
        1 => put(format_args!(r#"{{"frame_type":"ping"}}"#)),
        2 | 3 => acknowledgement(kind, payload, out)?,
        4 => {
            let (stream, code, size) = (int()?, int()?, int()?);
            put(format_args!(
                r#"{{"frame_type":"reset_stream","stream_id":{stream},"error_code":{code},"final_size":{size}}}"#
            ));
        }
        5 => {
            let (stream, code) = (int()?, int()?);
            put(format_args!(r#"{{"frame_type":"stop_sending","stream_id":{stream},"error_code":{code}}}"#));
        }
        6 => {
            let (offset, len) = (int()?, int()?);
            skip(payload, len)?;
            put(format_args!(r#"{{"frame_type":"crypto","offset":{offset},"length":{len}}}"#));
        }
        7 => {
            let len = int()?;
            skip(payload, len)?;
            put(format_args!(r#"{{"frame_type":"new_token"}}"#));
        }
        8..=15 => stream(kind, payload, out)?,
        0x10 => put(format_args!(r#"{{"frame_type":"max_data","maximum":{}}}"#, int()?)),
        0x11 => {
            let (stream, max) = (int()?, int()?);
            put(format_args!(r#"{{"frame_type":"max_stream_data","stream_id":{stream},"maximum":{max}}}"#));
        }
        0x12 | 0x13 => {
            let (max, ty) = (int()?, stream_type(kind == 0x12));
            put(format_args!(r#"{{"frame_type":"max_streams","stream_type":"{ty}","maximum":{max}}}"#));
        }
        0x14 => put(format_args!(r#"{{"frame_type":"data_blocked","limit":{}}}"#, int()?)),
        0x15 => {
            let (stream, limit) = (int()?, int()?);
            put(format_args!(
                r#"{{"frame_type":"stream_data_blocked","stream_id":{stream},"limit":{limit}}}"#
            ));
        }
        0x16 | 0x17 => {
            let (limit, ty) = (int()?, stream_type(kind == 0x16));
            put(format_args!(r#"{{"frame_type":"streams_blocked","stream_type":"{ty}","limit":{limit}}}"#));
        }
        0x18 => new_connection_id(payload, out)?,
        0x19 => {
            put(format_args!(r#"{{"frame_type":"retire_connection_id","sequence_number":{}}}"#, int()?));
        }
        0x1a | 0x1b => {
            let ty = if kind == 0x1a { "path_challenge" } else { "path_response" };
            let data = payload.first_chunk::<8>()?;
            put(format_args!(r#"{{"frame_type":"{ty}","data":"{}"}}"#, Hex(data)));
            payload.advance(8);
        }
        0x1c | 0x1d => close(kind, payload, out)?,
        0x1e => put(format_args!(r#"{{"frame_type":"handshake_done"}}"#)),
        // Frames of extensions have no length field, so the frames behind them cannot be found.
        _ => {
            put(format_args!(r#"{{"frame_type":"unknown","raw_frame_type":{kind}}}"#));
            *payload = &[];
        }
    }
    Some(())
}

fn skip(payload: &mut &[u8], len: u64) -> Option<()> {
    *payload = payload.get(usize::try_from(len).ok()?..)?;
    Some(())
}

fn stream_type(is_bidi: bool) -> &'static str {
    if is_bidi { "bidirectional" } else { "unidirectional" }
}

fn acknowledgement(kind: u64, payload: &mut &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut int = || read_varint(payload);
    let (mut largest, delay, count, first) = (int()?, int()?, int()?, int()?);
    let delay = Millis(Duration::from_micros(delay.saturating_mul(ACK_DELAY_UNIT_US)));
    let mut smallest = largest.checked_sub(first)?;
    let _ = write!(out, r#"{{"frame_type":"ack","ack_delay":{delay},"acked_ranges":[[{smallest},{largest}]"#);
    for n in 0..count {
        let (gap, len) = (int()?, int()?);
        largest = smallest.checked_sub(gap)?.checked_sub(2)?;
        smallest = largest.checked_sub(len)?;
        if n < RANGES_MAX {
            let _ = write!(out, ",[{smallest},{largest}]");
        }
    }
    out.push(b']');
    if kind == 3 {
        let (ect0, ect1, ce) = (int()?, int()?, int()?);
        let _ = write!(out, r#","ect0":{ect0},"ect1":{ect1},"ce":{ce}"#);
    }
    out.push(b'}');
    Some(())
}

fn stream(kind: u64, payload: &mut &[u8], out: &mut Vec<u8>) -> Option<()> {
    let id = read_varint(payload)?;
    let offset = if kind & 4 != 0 { read_varint(payload)? } else { 0 };
    let len = if kind & 2 != 0 { read_varint(payload)? } else { payload.len() as u64 };
    skip(payload, len)?;
    let fin = kind & 1 != 0;
    let _ = write!(
        out,
        r#"{{"frame_type":"stream","stream_id":{id},"offset":{offset},"length":{len},"fin":{fin}}}"#
    );
    Some(())
}

fn new_connection_id(payload: &mut &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (sequence, retired) = (read_varint(payload)?, read_varint(payload)?);
    let len = usize::from(*payload.first()?);
    let id = payload.get(1..=len)?;
    let _ = write!(
        out,
        r#"{{"frame_type":"new_connection_id","sequence_number":{sequence},"retire_prior_to":{retired},"connection_id":"{}"}}"#,
        Hex(id)
    );
    // The token of a stateless reset is a secret.
    skip(payload, 1 + len as u64 + 16)
}

fn close(kind: u64, payload: &mut &[u8], out: &mut Vec<u8>) -> Option<()> {
    let is_transport = kind == 0x1c;
    let code = read_varint(payload)?;
    if is_transport {
        let _frame_type = read_varint(payload)?;
    }
    let len = read_varint(payload)?;
    let reason = payload.get(..usize::try_from(len).ok()?)?;
    let space = if is_transport { "transport" } else { "application" };
    let _ = write!(
        out,
        r#"{{"frame_type":"connection_close","error_space":"{space}","error_code":{code},"reason":"{}"}}"#,
        Json(reason)
    );
    skip(payload, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(payload: &[u8]) -> String {
        let mut out = Vec::new();
        write(payload, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn frames_are_json_objects() {
        let token = [7; 16];
        let mut id = vec![0x18, 1, 0, 2, 0xab, 0xcd];
        id.extend(token);
        for (payload, expected) in [
            (
                &[3, 9, 1, 1, 2, 1, 3, 0, 0, 5][..],
                r#"{"frame_type":"ack","ack_delay":0.008,"acked_ranges":[[7,9],[1,4]],"ect0":0,"ect1":0,"ce":5}"#,
            ),
            (
                &[0x0f, 4, 2, 3, 1, 1, 1],
                r#"{"frame_type":"stream","stream_id":4,"offset":2,"length":3,"fin":true}"#,
            ),
            (&[8, 0, 1, 1], r#"{"frame_type":"stream","stream_id":0,"offset":0,"length":2,"fin":false}"#),
            (
                &[6, 0, 1, 9, 0x1e],
                r#"{"frame_type":"crypto","offset":0,"length":1},{"frame_type":"handshake_done"}"#,
            ),
            (
                &[0x12, 5, 0x17, 6],
                r#"{"frame_type":"max_streams","stream_type":"bidirectional","maximum":5},{"frame_type":"streams_blocked","stream_type":"unidirectional","limit":6}"#,
            ),
            (
                &id,
                r#"{"frame_type":"new_connection_id","sequence_number":1,"retire_prior_to":0,"connection_id":"abcd"}"#,
            ),
            (
                &[0x1c, 10, 0, 1, b'x'],
                r#"{"frame_type":"connection_close","error_space":"transport","error_code":10,"reason":"x"}"#,
            ),
            (
                &[0x1d, 10, 0],
                r#"{"frame_type":"connection_close","error_space":"application","error_code":10,"reason":""}"#,
            ),
            (&[0x1a, 1, 2, 3, 4, 5, 6, 7, 8], r#"{"frame_type":"path_challenge","data":"0102030405060708"}"#),
            (&[1, 0x3f, 1], r#"{"frame_type":"ping"},{"frame_type":"unknown","raw_frame_type":63}"#),
        ] {
            assert_eq!(text(payload), expected);
        }
    }

    #[test]
    fn cut_frames_end_the_list() {
        let all: &[&[u8]] = &[
            &[2, 9, 1, 1, 2, 1, 3],
            &[4, 1, 2, 3],
            &[6, 0, 1, 9],
            &[0x0f, 4, 2, 3, 1, 1, 1],
            &[0x1a, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x1c, 10, 0, 1, b'x'],
        ];
        for frame in all {
            for end in 1..frame.len() {
                let payload = [&[1][..], &frame[..end]].concat();
                assert_eq!(text(&payload), r#"{"frame_type":"ping"}"#, "{payload:?}");
            }
        }
        // Ranges below zero.
        assert_eq!(text(&[2, 1, 0, 0, 2]), "");
        assert_eq!(text(&[1; 1000]).matches("ping").count(), FRAMES_MAX);
    }
}
