//! `sub_filter`: replaces words in a body (nginx: ngx_http_sub_filter_module). Header filter.

pub(crate) mod matcher;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_module_support::changed_body::{Change, End, Validators, changed, remove_length};
use tw_module_support::types::{self, RawTypes, Types};
use tw_request::body::Body;
use tw_request::plan::{HeaderFilter, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::Template;

use self::matcher::{Occurrences, Replacer, WordList};

const ALL: u32 = HTTP | SERVER | LOCATION;
const TYPES: &[&str] = &["text/html"];
/// Bytes that are looked at before the result is measured: each could be a word, and stand for a long value.
const STEP: usize = 512;

/// Words as written.
#[derive(Default)]
pub(crate) struct Raw {
    pairs: Setting<Vec<(Word, Word)>>,
    once: Setting<bool>,
    last_modified: Setting<bool>,
    types: RawTypes,
}

/// Words of one location.
pub(crate) struct Sub {
    pairs: Option<Arc<Pairs>>,
    repeat: Occurrences,
    validators: Validators,
    types: Types,
}

/// Words and their replacements.
struct Pairs {
    searched: Searched,
    values: Box<[Template]>,
}

/// The words that are looked for.
enum Searched {
    /// Words without variables.
    Fixed(Arc<WordList>),
    /// Some have variables in them: words in the order of the values.
    Varying(Box<[Template]>),
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Words that are replaced in one block.
    const WORDS_MAX: usize = 255, count, "the configuration is refused";
    /// Bytes of a word of `sub_filter` with variables.
    ///
    /// Longest string with variables that is searched for. A peer may choose it, and it is compiled on the loop for each
    /// response: 7 KB took 5 ms without optimisation.
    pub(crate) const VARYING_MAX: usize = 1024, bytes, "the word is not looked for";
}

impl Settings<Http> for Sub {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("sub_filter", "string replacement", ALL, Args::exact(2))
            .doc("Replaces a string in the body, whatever its letter case; both may have variables.")
            .set(|raw, node, _| {
                let [searched, value] = node.words()?;
                if searched.bytes.is_empty() {
                    return Err(node.fail("empty search pattern"));
                }
                if raw.pairs.get().is_some_and(|pairs| pairs.len() == WORDS_MAX) {
                    return Err(node.fail(format!("number of search patterns exceeds {WORDS_MAX}")));
                }
                raw.pairs.push(node, (searched.clone(), value.clone()));
                Ok(())
            }),
        record::flag("sub_filter_once", ALL)
            .default("on")
            .doc("Replaces each string once only.")
            .set(|raw, node, _| raw.once.set_flag(node)),
        record::flag("sub_filter_last_modified", ALL)
            .default("off")
            .since("1.5.1")
            .doc("Keeps Last-Modified.")
            .set(|raw, node, _| raw.last_modified.set_flag(node)),
        record::new("sub_filter_types", "mime-type …", ALL, Args::at_least(1))
            .default("text/html")
            .doc("Media types besides text/html in which strings are replaced; `*` is any.")
            .set(|raw, node, cx| {
                types::add(&mut raw.types, node, TYPES, cx);
                Ok(())
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let pairs = match raw.pairs.take() {
            Some(pairs) => Some(Arc::new(Pairs::compile(&pairs, cx)?)),
            None => outer.and_then(|o| o.pairs.clone()),
        };
        let keep = outer.map(|o| o.validators == Validators::Keep);
        let once = outer.map(|o| o.repeat == Occurrences::Once);
        Ok(Self {
            pairs,
            repeat: if raw.once.or(once, true) { Occurrences::Once } else { Occurrences::Always },
            validators: Validators::of(raw.last_modified.or(keep, false)),
            types: Types::resolve(raw.types, outer.map(|o| &o.types), TYPES),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.pairs.is_some() {
            plan.add_header_filter(self.clone());
        }
    }
}

impl Pairs {
    fn compile(pairs: &[(Word, Word)], cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let words = pairs.iter().map(|(searched, _)| cx.template(searched)).collect::<Result<Box<_>, _>>()?;
        let fixed: Option<Vec<_>> =
            words.iter().map(|word| word.constant().map(<[u8]>::to_ascii_lowercase)).collect();
        let searched = match fixed {
            Some(words) => Searched::Fixed(Arc::new(WordList::new(words.iter().map(|word| &**word)))),
            None => Searched::Varying(words),
        };
        let values = pairs.iter().map(|(_, value)| cx.template(value)).collect::<Result<_, _>>()?;
        Ok(Self { searched, values })
    }

    /// The words for `r`, and the number of the value of each.
    fn words(&self, r: &Request) -> (Arc<WordList>, Vec<u8>) {
        match &self.searched {
            Searched::Fixed(words) => (words.clone(), (0..=u8::MAX).take(words.count()).collect()),
            Searched::Varying(templates) => {
                let words =
                    (0..=u8::MAX).zip(templates).map(|(n, text)| (n, text.value(r).to_ascii_lowercase()));
                // DIFF(nginx): a word with variables that is too long is not looked for.
                let (of, words): (Vec<_>, Vec<_>) =
                    words.filter(|(_, word)| (1..=VARYING_MAX).contains(&word.len())).unzip();
                (Arc::new(WordList::new(words.iter().map(|word| &**word))), of)
            }
        }
    }
}

impl HeaderFilter for Sub {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        let Some(pairs) = &self.pairs else { return body };
        if body.is_empty() || !self.types.contain(&r.response) {
            return body;
        }
        let (words, value_of) = pairs.words(r);
        if value_of.is_empty() {
            return body;
        }
        if !r.is_subrequest() {
            remove_length(r);
            self.validators.apply(&mut r.response);
        }
        let values = vec![None; value_of.len()];
        let replacer = Replacer::new(words, self.repeat);
        changed(body, Replaced { pairs: pairs.clone(), value_of, values, replacer })
    }
}

/// Replaces words in a body.
struct Replaced {
    pairs: Arc<Pairs>,
    /// The number of the value of each word.
    value_of: Vec<u8>,
    /// Replacement of each word, once it was evaluated.
    values: Vec<Option<Bytes>>,
    replacer: Replacer,
}

impl Change for Replaced {
    fn change(&mut self, rest: &mut Bytes, end: End, want: usize, r: &Request) -> io::Result<Option<Bytes>> {
        let Self { pairs, value_of, values, replacer } = self;
        if replacer.is_over() || replacer.passes(rest) {
            let all = std::mem::take(rest);
            return Ok((!all.is_empty()).then_some(all));
        }
        let mut out = Vec::new();
        let mut replace = |word: u8, out: &mut Vec<u8>| {
            let word = usize::from(word);
            if let (Some(value), Some(of)) = (values.get_mut(word), value_of.get(word)) {
                let text = value.get_or_insert_with(|| {
                    pairs.values.get(usize::from(*of)).map(|text| text.value(r)).unwrap_or_default().into()
                });
                out.extend_from_slice(text);
            }
        };
        while out.len() < want && !rest.is_empty() {
            let some = rest.split_to(STEP.min(rest.len()));
            replacer.push(&some, &mut out, &mut replace);
        }
        if rest.is_empty() && end == End::Reached {
            replacer.finish(&mut out, &mut replace);
        }
        Ok((!out.is_empty()).then(|| out.into()))
    }
}
