//! Native functions that the JavaScript of the API calls: the object `host`.

mod aes;
pub(crate) mod bytes;
mod der;
mod digest;
mod function;
mod keys;
mod operation;
mod request;
mod response;
mod setting;
mod text;
mod value;
mod webcrypto;
mod xml;
mod zlib;

use std::rc::Rc;

use rquickjs::{Ctx, Object};

pub(crate) use self::setting::{MODULES, evaluate_part};

use crate::state::State;

tw_base::limits! {
    /// Limits of native functions.
    pub(crate) const LIMITS;

    use xml::LIMITS;
}

/// The object with all native functions.
pub(crate) fn host<'js>(ctx: &Ctx<'js>, state: &Rc<State>) -> rquickjs::Result<Object<'js>> {
    let object = Object::new(ctx.clone())?;
    request::install(ctx, &object, state)?;
    response::install(ctx, &object, state)?;
    operation::install(ctx, &object, state)?;
    setting::install(ctx, &object, state)?;
    text::install(ctx, &object, state)?;
    digest::install(ctx, &object, state)?;
    keys::install(ctx, &object, state)?;
    webcrypto::install(ctx, &object, state)?;
    xml::install(ctx, &object, state)?;
    zlib::install(ctx, &object, state)?;
    Ok(object)
}
