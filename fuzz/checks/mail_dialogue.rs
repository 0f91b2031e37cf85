//! Invariants for any bytes of a client of mail before its login: no panic, and the replies do not depend on how the bytes arrive.

use tw_mail::dialogue::{
    AuthMethod, AuthMethods, Capabilities, Dialogue, DialogueFacts, Input, Login, MailProtocol, Next,
    ProtocolTexts, StartTls,
};

/// Bytes of a command at most.
const INPUT_SIZE: usize = 256;

pub(crate) fn pop3(data: &[u8]) {
    check(MailProtocol::Pop3, data);
}

pub(crate) fn imap(data: &[u8]) {
    check(MailProtocol::Imap, data);
}

pub(crate) fn smtp(data: &[u8]) {
    check(MailProtocol::Smtp, data);
}

fn check(protocol: MailProtocol, data: &[u8]) {
    let whole = run(protocol, data, INPUT_SIZE);
    assert_eq!(run(protocol, data, 1), whole);
    assert_eq!(run(protocol, data, 7), whole);
}

/// Replies and the last event, with user and password of a login, if at most `step` bytes arrive at once.
fn run(protocol: MailProtocol, data: &[u8], step: usize) -> (Vec<u8>, Option<Next>, Option<Vec<u8>>) {
    let facts = DialogueFacts {
        capabilities: &Capabilities::default(),
        texts: &ProtocolTexts::default(),
        methods: AuthMethods::of(&AuthMethod::ALL),
        starttls: StartTls::On,
        is_tls: false,
        errors_max: 4,
    };
    let mut dialogue = Dialogue::new(protocol);
    let mut login = Login { salt: "<1.2@h>".to_owned(), ..Login::default() };
    let mut input = Input::new(INPUT_SIZE);
    let (mut replies, mut rest) = (Vec::new(), data);
    loop {
        let done = dialogue.advance(&mut input, &mut login, &facts);
        replies.extend_from_slice(&done.reply);
        match done.next {
            Next::Command => {}
            Next::Receive => {
                let count = step.min(rest.len()).min(input.room().len());
                if count == 0 {
                    assert!(rest.is_empty(), "an input without room has a command");
                    return (replies, None, None);
                }
                let (now, later) = rest.split_at(count);
                input.push(now);
                rest = later;
            }
            Next::Login => {
                let secrets = [login.user.bytes(), login.password.as_ref().map_or(&[], |it| it.bytes())];
                let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n' | 0);
                assert!(!secrets.concat().iter().any(is_line_end), "a login has no line end");
                return (replies, Some(Next::Login), Some(secrets.concat()));
            }
            end @ (Next::Close | Next::Abort | Next::StartTls) => return (replies, Some(end), None),
        }
    }
}
