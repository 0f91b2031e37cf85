//! Methods of `State` as functions of JavaScript.

/// Adds methods of `State` to an object: each has the context as its first argument.
macro_rules! natives {
    ($js:lifetime, $ctx:expr, $object:expr, $state:expr; $($name:ident($($argument:ident: $type:ty),*);)*) => {$({
        let state = std::rc::Rc::clone($state);
        let function = rquickjs::Function::new(
            $ctx.clone(),
            move |ctx: rquickjs::Ctx<$js> $(, $argument: $type)*| state.$name(&ctx $(, $argument)*),
        )?;
        $object.set($crate::native::function::camel_case(stringify!($name)), function)?;
    })*};
}
pub(super) use natives;

/// Name of a native function in JavaScript.
pub(crate) fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut result = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        result.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        result.push_str(letters.as_str());
    }
    result
}
