//! Scripted dialogues for unit tests.

use crate::dialogue::{
    AuthMethod, AuthMethods, Capabilities, Dialogue, DialogueFacts, Input, Login, MailProtocol, Next,
    ProtocolTexts, StartTls,
};

/// Bytes of a command at most.
const INPUT_SIZE: usize = 512;

/// Facts of a server that announces its capabilities with single words.
pub(crate) fn facts() -> DialogueFacts<'static> {
    let words = |text: &str| -> Box<[u8]> { text.as_bytes().into() };
    let capabilities = Box::leak(Box::new(Capabilities {
        plain: words("PLAIN"),
        starttls: words("ON"),
        starttls_only: words("ONLY"),
    }));
    let texts = Box::leak(Box::new(ProtocolTexts { greeting: words("GREETING"), short: words("SHORT") }));
    DialogueFacts {
        capabilities,
        texts,
        methods: AuthMethods::of(&[AuthMethod::Plain]),
        starttls: StartTls::Off,
        is_tls: false,
        errors_max: 5,
    }
}

/// A client that sends lines.
pub(crate) struct Script {
    pub(crate) dialogue: Dialogue,
    pub(crate) input: Input,
    pub(crate) login: Login,
    pub(crate) notes: Vec<String>,
    facts: DialogueFacts<'static>,
}

impl Script {
    fn new(protocol: MailProtocol, facts: DialogueFacts<'static>) -> Self {
        let login = Login { salt: "<1.2@host>".to_owned(), ..Login::default() };
        Self {
            dialogue: Dialogue::new(protocol),
            input: Input::new(INPUT_SIZE),
            login,
            notes: Vec::new(),
            facts,
        }
    }

    pub(crate) fn pop3(facts: DialogueFacts<'static>) -> Self {
        Self::new(MailProtocol::Pop3, facts)
    }

    pub(crate) fn imap(facts: DialogueFacts<'static>) -> Self {
        Self::new(MailProtocol::Imap, facts)
    }

    pub(crate) fn smtp(facts: DialogueFacts<'static>) -> Self {
        Self::new(MailProtocol::Smtp, facts)
    }

    /// Sends a line as one piece, and checks all replies with the event behind them.
    pub(crate) fn says(&mut self, line: &str, expected: &str) {
        self.input.push(format!("{line}\r\n").as_bytes());
        assert_eq!(self.replies(), expected, "{line:?}");
    }

    /// Sends bytes one by one, and checks all replies.
    pub(crate) fn spells(&mut self, text: &str, expected: &str) {
        let mut out = String::new();
        for byte in text.bytes() {
            self.input.push(&[byte]);
            out.push_str(&self.replies());
        }
        assert_eq!(out, expected, "{text:?}");
    }

    fn replies(&mut self) -> String {
        let mut out = String::new();
        loop {
            let step = self.dialogue.advance(&mut self.input, &mut self.login, &self.facts);
            out.push_str(&String::from_utf8_lossy(&step.reply));
            self.notes.extend(step.note.map(String::from));
            match step.next {
                Next::Command => continue,
                Next::Receive => {}
                Next::Close | Next::Abort => out.push_str("CLOSE"),
                Next::StartTls => out.push_str("TLS"),
                Next::Login => out.push_str("LOGIN"),
            }
            return out;
        }
    }
}
