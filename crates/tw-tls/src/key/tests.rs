//! Keys of every form. The sealed ones are of `openssl`; the key inside and the pass phrase `tailwater` exist only
//! here.

use super::*;
use crate::testing::{ecdsa_key, rsa_key};

fn words(text: &str) -> Passwords {
    Passwords::read(text.as_bytes()).unwrap()
}

fn refused(text: &str, passwords: &str) -> KeyError {
    Key::read(text.as_bytes(), &words(passwords)).unwrap_err()
}

#[test]
fn pkcs8() {
    for (key, kind, cost) in [(ecdsa_key(), Kind::Ecdsa, Cost::Fast), (rsa_key(), Kind::Rsa, Cost::Slow)] {
        let read = Key::read(key.serialize_pem().as_bytes(), &Passwords::default()).unwrap();
        assert_eq!((read.kind, read.cost()), (kind, cost));
    }
}

#[test]
fn pkcs1() {
    // The PKCS#1 key is inside of the PKCS#8 one, behind the version and the algorithm.
    let pkcs8 = rsa_key().serialize_der();
    let mut parts = crate::der::only(&pkcs8, crate::der::SEQUENCE).unwrap();
    parts.element().unwrap();
    parts.element().unwrap();
    let text = pem::encode("RSA PRIVATE KEY", parts.element().unwrap().content);
    assert_eq!(Key::read(text.as_bytes(), &Passwords::default()).unwrap().kind, Kind::Rsa);
}

#[test]
fn every_form_is_the_same_key() {
    let passwords = words("wrong\nalso wrong\ntailwater\n");
    let public = |text: &str| {
        let key = Key::read(text.as_bytes(), &passwords).unwrap();
        key.signing.public_key().unwrap().to_vec()
    };
    let (_, first) = FORMS[0];
    for (name, text) in FORMS {
        assert_eq!(public(text), public(first), "{name}");
        assert_eq!(
            public(&format!("# a comment\r\n{}", text.replace('\n', "\r\n"))),
            public(first),
            "{name}"
        );
    }
}

#[test]
fn without_the_pass_phrase() {
    for (name, text) in FORMS.iter().skip(2) {
        assert_eq!(refused(text, ""), KeyError::NoPassword, "{name}");
        // One time in 256 the padding fits by chance; then the content is no key.
        assert!(
            matches!(refused(text, "wrong\nTailwater\n"), KeyError::BadDecrypt | KeyError::BadKey(_)),
            "{name}"
        );
    }
}

#[test]
fn refused_input_is_named() {
    let (_, sec1) = FORMS[0];
    let (_, legacy) = FORMS[FORMS.len() - 1];
    for (text, expected) in [
        (String::new(), "there is no private key in it"),
        (
            "-----BEGIN CERTIFICATE-----\nZm9v\n-----END CERTIFICATE-----\n".to_owned(),
            "there is a certificate in it",
        ),
        (sec1.replace("END EC", "END"), "its line \"-----END\" is missing"),
        (sec1.replace("\nM", "\n*"), "not base64"),
        ("-----BEGIN PRIVATE KEY-----\nZm9v\n-----END PRIVATE KEY-----\n".to_owned(), "unsupported"),
        (
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nZm9v\n-----END ENCRYPTED PRIVATE KEY-----\n".to_owned(),
            "not PKCS#8",
        ),
        (legacy.replace("DES-EDE3-CBC", "IDEA-CBC"), "unsupported encryption: IDEA-CBC"),
        (legacy.replace("CBC,", "CBC,00"), "bad iv chars"),
        (SCRYPT.to_owned(), "PBKDF2"),
        (PBES1.to_owned(), "only PBES2"),
        ("x".repeat(KEY_SIZE_MAX + 1), "more than"),
    ] {
        let error = refused(&text, "tailwater").to_string();
        assert!(!error.contains("SSL"), "{error}");
        assert!(error.contains(expected), "{error} is not {expected}");
    }
}

#[test]
fn truncated_sealed_keys_do_not_panic() {
    let section = pem::sections(SCRYPT.as_bytes()).next().unwrap().unwrap();
    let scrypt = section.decode().unwrap();
    let section = pem::sections(FORMS[2].1.as_bytes()).next().unwrap().unwrap();
    let pbes2 = section.decode().unwrap();
    for bytes in [scrypt, pbes2] {
        for end in 0..bytes.len() {
            let text = pem::encode("ENCRYPTED PRIVATE KEY", &bytes[..end]);
            refused(&text, "tailwater");
        }
    }
}

/// One key of P-256 as OpenSSL 3.0 writes it: `openssl pkcs8 -topk8`, `openssl ec`.
const FORMS: &[(&str, &str)] = &[
    (
        "SEC1",
        "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIOiRGKArQgTCAEJTBihboz3+WlOMpsfmpgGgPaeT2ik0oAoGCCqGSM49
AwEHoUQDQgAEF3TnX75/oeXt/zRvPN4WOdInX6+KdOB2f1BRPkjgpcPVfAoCI8dg
gYnoh3rxjtZjmcUz9LqJeIRN2HC8Vuxoyw==
-----END EC PRIVATE KEY-----
",
    ),
    (
        "PKCS8",
        "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg6JEYoCtCBMIAQlMG
KFujPf5aU4ymx+amAaA9p5PaKTShRANCAAQXdOdfvn+h5e3/NG883hY50idfr4p0
4HZ/UFE+SOClw9V8CgIjx2CBieiHevGO1mOZxTP0uol4hE3YcLxW7GjL
-----END PRIVATE KEY-----
",
    ),
    (
        "PBES2 aes-128-cbc",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhzNyTswGhUgAICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEAQIEEGkc84VBUA/7FupOwjSFtYsEgZCF
MP9S5MxruqS2DcXnGoQ11OTJuzXyI7KjdlRXGQ66LK5w3BJBazhjXeLTqeuWvR16
V587xuTVTye/u4r3FJwOIpsBUPPApZk8iZgB0GQy9CsSvBwOuudBEvEtfYyX9t90
qgjD/VEDTDTDyN1KR/3h7qglPokNJ+cV3wCSpcKyBXScixzKj0E3+wjIKGSHX5o=
-----END ENCRYPTED PRIVATE KEY-----
",
    ),
    (
        "PBES2 aes-192-cbc",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiH6002pHdgAQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEARYEEE67KDtp9CtLSe72I0BRWJUEgZCh
ynXaHTr3GrhhbtTs+KCXXHooOf7bs0eiGHkL4sSrCPc4ZrZQ+Lb5/af0BpM+8069
1oyXC7O1MSjuolAUOI8B/eB5QxdAgYoan5Ib6V+IqQZ2zODW92jZ4wtaNQpUcJNy
L2JVew3hlaBIVFNXJke+VF/7St0jlG48sXhbt/ksS8dUA1ut/P2pkEcMXegVVmc=
-----END ENCRYPTED PRIVATE KEY-----
",
    ),
    (
        "PBES2 aes-256-cbc",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhx1NyX/uWEtQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEDScVaffYrbAAUeiQ4A/oxsEgZCH
G7+a/YF6+5VH+kcb4HhGxzldp1PF6L+YhkVHaWjugBJNL5zx/Z0lh/p/IUyjhn6Y
62r+mKnLZai30fO/iT07VL6UYLFgb43NL2Dr4sDhWz/EC9AGREL/rxYnKaB3JZyr
TwKbBTaHpdsHkxoaBCZmjz9psqA/QXfcRmsVd7DLT7johy7Fn24FmIZfW6xAWcc=
-----END ENCRYPTED PRIVATE KEY-----
",
    ),
    (
        "PBES2 des3",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHjME4GCSqGSIb3DQEFDTBBMCkGCSqGSIb3DQEFDDAcBAgTF4edJihnGAICCAAw
DAYIKoZIhvcNAgkFADAUBggqhkiG9w0DBwQIx0U9DKrmJzYEgZAcYBNkn7lkPZgm
1iVYy0sOLwWkLAOpkR2Us+hBPpoOlAA+14+R7gKMTrwJoRn3UrMEFR32dxd5prig
MCyJojpO00ozvzafLaUB1cqRjb+f4vb05/LKBbDDsvBi03LZhA/yiA57+EYAXSkF
CPnT12j/N+D3z3NfWJFJt4WG64ZdEvxkHZFZpogLglWdmRenWWI=
-----END ENCRYPTED PRIVATE KEY-----
",
    ),
    (
        "PBES2 hmacWithSHA1",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHeMEkGCSqGSIb3DQEFDTA8MBsGCSqGSIb3DQEFDDAOBAioZEBtFqdqfgICCAAw
HQYJYIZIAWUDBAEqBBAOiQw3bMkLd5VJ6JQhWK57BIGQC16Oxe3v0v60+lhHkPXN
H3HMhaQNybOHm8nX88X04t11tPcpuNP4ZCdturMyp8r/lM5v/JJlju85xNr8j4WS
VFXoeysaDpHvnIrCpTTkUjInujzePrS520+6B5QUTUJ02R+LWY/FvX3ooQGu/cJJ
oHkqZiIx3elPT9cbF8AMrnlFgAquoWHWo7S3IieSJFiu
-----END ENCRYPTED PRIVATE KEY-----
",
    ),
    (
        "PBES2 hmacWithSHA384",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgMLUgRoqsamgICCAAw
DAYIKoZIhvcNAgoFADAdBglghkgBZQMEASoEEDrQhzT4OhOfI28dL7eWlSgEgZAQ
6PSYvKVS5jtkP6GJ9g7acrb6phVFHj9wFCh72ZwSVlXMMHxf1I1m7L3kmMVdtCr4
CsdIt2A5LKOANwAuyanVqM0U7jUM4ACOmnZemoF7VFg5S5XNS1tkYIxOFjKMYo0g
/RkcDkFVJavu4rUOTPVYqjte+f4LXJB/lqXFZ6vPC4IfIBj032ODU+vxUJ7Oswo=
-----END ENCRYPTED PRIVATE KEY-----
",
    ),
    (
        "PBES2 hmacWithSHA512",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgWc+3pkOTQzQICCAAw
DAYIKoZIhvcNAgsFADAdBglghkgBZQMEASoEEIg7oJrVeFX3SMu8jER8TVgEgZBE
Oj2cjuIHw4jEYFPeq5Nu6Q0FU8beUuKJ4sJYuXi+XuNM+t+irl1xkJ9SsCN3I7Y0
vR9p33XIU0rsemDMQPaAAxnYFgUbbZtzQ+Qx9Zlcjb9dQlEwJ0m0+elJ8SlUCk8x
Zjt7S//LEaLYb2j90oJ0qcqc586VfSuITDp8LkPbELCDoQi+gE7as8eqnBaIZeU=
-----END ENCRYPTED PRIVATE KEY-----
",
    ),
    (
        "legacy aes128",
        "-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,CE272EF8256463AFD0116400AF057076

wGnIB/CpuvTdEU76WHBDT9cLK9ZwQ/q++UlJHmp0b74cc4QrbiY1/4yNLKp2uEl4
KNe3E/87ZHzbqWUJgLNPlWWrvSBRAXxPyqj3j1b8mY8iWDtPD94uDI7rRHIs2NbR
5f776N7ZeR4tpsRLuhlhgOTXt4r/mUvrm5xa8niFH4w=
-----END EC PRIVATE KEY-----
",
    ),
    (
        "legacy aes192",
        "-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-192-CBC,3FC9F0AB0118386673B886F1BF272CD8

w5iDL9FB/4AdOnSJCtr9ZLd6QCoOnOHIRp2y3clgBGj+XCncpFm3yCNI6gKwqTdt
Ps1O82P0cgdgszbQgsfqM61n9osQWpYKuqkoTlO9OiJ9mjNMQSuBIAej+VPmDDOd
uVkGe+YVa9hIAIHTiOsez9YClCB5kM5luOH9DQCEAb8=
-----END EC PRIVATE KEY-----
",
    ),
    (
        "legacy aes256",
        "-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-256-CBC,110C15D20362958F0F364B931C4A5236

7zbHOYq9rHF61PHjQlhPDZ4gTswTN4Ao8elWDDO5X84p/RNuhVT85ln65FeDSpxX
SSAXFeD+ch+Z2j/ZVHFQjOkvbQLplmn7J01RFbReZh6MBrWuKsnUk78/aZfhv6yZ
SigNV4SljokFgs7xgxoAMXPDoLSnj2G4+fhDatXkWdc=
-----END EC PRIVATE KEY-----
",
    ),
    (
        "legacy des3",
        "-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: DES-EDE3-CBC,F966657825FB3DEC

d0058lzq1fb5IoUbq0JxZHokUSkEPIuBdNlSeL5GFwKjL2rYJwBdT4PIeDiquclq
gNHDPstM4lTXLwKfEyzjT3A+W1U/wu3vIGUQb4h/vkHLS6lZd26W/UmjqgerRNPg
eLP6nPnGmAEewKhGOJap2PFYZFPvzLMCPJxEHzdZVwA=
-----END EC PRIVATE KEY-----
",
    ),
];

/// Key encrypted with `-scrypt`, which is not supported.
const SCRYPT: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHkME8GCSqGSIb3DQEFDTBCMCEGCSsGAQQB2kcECzAUBAhbF8rvOVQdNQICQAAC
AQgCAQEwHQYJYIZIAWUDBAEqBBCohC2NJcDlEDTr99osQMgfBIGQdudRZrpK6BU6
08rdNt66lIHigSg6G5BFVzdDs3jyxzDtK6hOZknDTQ4yEfnt/m4ATtQbYA5bQGLt
LPkNVmqIDKdZMmJsNN2vy8/zEDWnw1rQqZfc1m8X841ocIj3Aw8fjIHWYocIy7CO
lBBgZVL/htsdmUS3PkxEjBKyhwfkbtgdc6n88WBbB74OH+iw+0av
-----END ENCRYPTED PRIVATE KEY-----
";

/// Key encrypted with `-v1 PBE-SHA1-3DES`, which is not supported.
const PBES1: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGxMBwGCiqGSIb3DQEMAQMwDgQIb+a5gkuyfisCAggABIGQkRnjIK1l//MTLdtY
aQ/vJD5EZeJgLImvzmfJgu/rFakuWa495K4VB5wfN8UdjlI6l6n5keaC0l2ZYpjK
2rqw9i9WQ0XfVGBgZMn1eHl9cDl3wr0LzS/mg/Z3i3vxcBJUcgckC09dXYlZK9/R
+Poejs/f7vg7SzG3xao0ierQkom8iv1R1iq/Ro0g2yhOrzzJ
-----END ENCRYPTED PRIVATE KEY-----
";
