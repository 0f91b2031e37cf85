//! The checks of the fuzz targets, with few inputs.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/mail_auth_response.rs"]
mod mail_auth_response;
#[path = "../../../fuzz/checks/mail_dialogue.rs"]
mod mail_dialogue;

/// Some seconds for each target without optimisation.
const MUTATIONS: Mutations<'_> = Mutations { count: 2000, alphabet: b"\r\n {}+\"\\=:<>*a1AU\0\xff" };

#[test]
fn clients_of_pop3() {
    MUTATIONS.run("mail_pop3", mail_dialogue::pop3);
}

#[test]
fn clients_of_imap() {
    MUTATIONS.run("mail_imap", mail_dialogue::imap);
}

#[test]
fn clients_of_smtp() {
    MUTATIONS.run("mail_smtp", mail_dialogue::smtp);
}

#[test]
fn responses_of_auth_servers() {
    MUTATIONS.run("mail_auth_response", mail_auth_response::check);
}
