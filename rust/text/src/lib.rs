//! The C ABI of the text crate. No panic and no exception crosses it: every function that can fail
//! returns 0 or a code of fail.rs, with a text in `*error` that the caller frees. The header is
//! src/text/rust_abi.h; both change together.

mod budget;
mod callargs;
mod check;
mod clock;
mod context;
mod control;
mod deep;
mod fail;
mod generation;
mod limits;
mod operators;
mod pymethods;
mod python;
mod pyvalue;
mod regexp;
mod steps;
mod stream;
mod template;
#[cfg(test)]
mod template_test;
mod tojson;
mod tokenizer;

use fail::{Code, Fail, Result};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Once};
use std::{ptr, slice};
use stream::Stream;
use template::Template;
use tokenizer::{Parse, Tokenizer};

/// Memory of this crate: freed by smoe_bytes_free.
#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    len: usize,
}

/// Memory of this crate: freed by smoe_ids_free.
#[repr(C)]
pub struct Ids {
    data: *mut u32,
    len: usize,
}

/// Memory of this crate: freed by smoe_offsets_free.
#[repr(C)]
pub struct Offsets {
    data: *mut usize,
    len: usize,
}

/// Memory of the caller.
#[repr(C)]
pub struct Text {
    data: *const u8,
    len: usize,
}

fn leak<T>(items: Vec<T>) -> (*mut T, usize) {
    let items = Box::leak(items.into_boxed_slice());
    (items.as_mut_ptr(), items.len())
}

impl From<String> for Bytes {
    fn from(text: String) -> Bytes {
        let (data, len) = leak(text.into_bytes());
        Bytes { data, len }
    }
}

impl From<Vec<u32>> for Ids {
    fn from(ids: Vec<u32>) -> Ids {
        let (data, len) = leak(ids);
        Ids { data, len }
    }
}

impl From<Vec<usize>> for Offsets {
    fn from(offsets: Vec<usize>) -> Offsets {
        let (data, len) = leak(offsets);
        Offsets { data, len }
    }
}

/// SAFETY (of all three): `data` points to `len` items that outlive the call.
unsafe fn items<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    slice::from_raw_parts(data, len)
}

impl Text {
    unsafe fn bytes(&self) -> &[u8] {
        items(self.data, self.len)
    }

    unsafe fn text(&self) -> Result<&str> {
        Ok(std::str::from_utf8(self.bytes())?)
    }
}

/// Runs `f`. A failure or a panic becomes a code and a text.
fn guard(error: *mut Bytes, f: impl FnOnce() -> Result<()>) -> i32 {
    static HOOK: Once = Once::new();
    // The text goes to the caller, not to stderr.
    HOOK.call_once(|| std::panic::set_hook(Box::new(|_| ())));
    let fail = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => return 0,
        Ok(Err(fail)) => fail,
        Err(panic) => {
            Fail { code: Code::Panic, text: format!("panic: {}", fail::panic_text(&*panic)) }
        }
    };
    if !error.is_null() {
        unsafe { ptr::write(error, fail.text.into()) }
    }
    fail.code as i32
}

// ---- Tokenizer ----

type TokenizerHandle = Arc<Tokenizer>;

#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_load(
    json: Text,
    out: *mut *mut TokenizerHandle,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        let tokenizer = Arc::new(Tokenizer::load(json.bytes())?);
        *out = Box::into_raw(Box::new(tokenizer));
        Ok(())
    })
}

/// `parse`: 0 all added tokens, 1 not the special ones, 2 none that steers the model.
#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_encode(
    tokenizer: *const TokenizerHandle,
    text: Text,
    add_special: bool,
    parse: i32,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        let parse = match parse {
            0 => Parse::All,
            1 => Parse::NotSpecial,
            _ => Parse::NoControl,
        };
        // Bytes that are not UTF-8 become U+FFFD, as Python's errors="replace" does.
        let text = String::from_utf8_lossy(text.bytes());
        *out = (*tokenizer).encode(&text, add_special, parse)?.into();
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_encode_broken(
    tokenizer: *const TokenizerHandle,
    text: Text,
    breaks: *const usize,
    break_count: usize,
    add_special: bool,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        let breaks = items(breaks, break_count);
        *out = (*tokenizer).encode_broken(text.text()?, breaks, add_special)?.into();
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_breaks(
    tokenizer: *const TokenizerHandle,
    text: Text,
    out: *mut Offsets,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        *out = (*tokenizer).breaks(text.text()?).into();
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_decode(
    tokenizer: *const TokenizerHandle,
    ids: *const u32,
    id_count: usize,
    skip_special: bool,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        *out = stream::decode(&*tokenizer, items(ids, id_count), skip_special)?.into();
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_vocab_size(tokenizer: *const TokenizerHandle) -> u32 {
    (*tokenizer).vocab_size()
}

/// The token as it stands in the vocabulary; empty where an id has none.
#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_token_text(
    tokenizer: *const TokenizerHandle,
    id: u32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        (*tokenizer).check_id(id)?;
        *out = (*tokenizer).token_text(id).unwrap_or_default().into();
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_is_special(
    tokenizer: *const TokenizerHandle,
    id: u32,
) -> bool {
    (*tokenizer).is_special(id)
}

/// `*found` says whether `*id` is set.
#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_token_id(
    tokenizer: *const TokenizerHandle,
    text: Text,
    id: *mut u32,
    found: *mut bool,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        let wanted = (*tokenizer).token_id(text.text()?);
        *found = wanted.is_some();
        *id = wanted.unwrap_or(0);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_prefix(
    tokenizer: *const TokenizerHandle,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        *out = (*tokenizer).prefix()?.into();
        Ok(())
    })
}

// ---- Stream ----

/// Keeps the tokenizer alive by itself.
#[no_mangle]
pub unsafe extern "C" fn smoe_stream_new(
    tokenizer: *const TokenizerHandle,
    skip_special: bool,
) -> *mut Stream {
    Box::into_raw(Box::new(Stream::new((*tokenizer).clone(), skip_special)))
}

#[no_mangle]
pub unsafe extern "C" fn smoe_stream_push(
    stream: *mut Stream,
    id: u32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        *out = (*stream).push(id)?.into();
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn smoe_stream_finish(
    stream: *mut Stream,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        *out = (*stream).finish()?.into();
        Ok(())
    })
}

// ---- Template ----

/// `globals`: a JSON object.
#[no_mangle]
pub unsafe extern "C" fn smoe_template_new(
    source: Text,
    globals: Text,
    out: *mut *mut Template,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        let globals = serde_json::from_slice(globals.bytes())
            .map_err(|e| Fail::invalid(format!("globals: {e}")))?;
        *out = Box::into_raw(Box::new(Template::new(source.text()?, globals)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn smoe_template_wants_text(template: *const Template) -> bool {
    (*template).arguments() == context::Arguments::Text
}

/// `tokenizer` may be null: then nothing is protected. `now`: seconds since 1970, null for the
/// system's clock.
#[no_mangle]
pub unsafe extern "C" fn smoe_template_render(
    template: *const Template,
    tokenizer: *const TokenizerHandle,
    request: Text,
    now: *const i64,
    text: *mut Bytes,
    breaks: *mut Offsets,
    differs: *mut bool,
    error: *mut Bytes,
) -> i32 {
    guard(error, || {
        let control = tokenizer.as_ref().map(|t| t.control());
        let prompt = (*template).render(request.bytes(), control, now.as_ref().copied())?;
        *text = prompt.text.into();
        *breaks = prompt.breaks.into();
        *differs = prompt.differs;
        Ok(())
    })
}

// ---- Release ----

fn free<T: ?Sized>(item: *mut T) {
    if !item.is_null() {
        // A panic in a destructor leaks, which is better than unwinding into C++.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(item) })));
    }
}

#[no_mangle]
pub unsafe extern "C" fn smoe_tokenizer_free(tokenizer: *mut TokenizerHandle) {
    free(tokenizer);
}

#[no_mangle]
pub unsafe extern "C" fn smoe_stream_free(stream: *mut Stream) {
    free(stream);
}

#[no_mangle]
pub unsafe extern "C" fn smoe_template_free(template: *mut Template) {
    free(template);
}

#[no_mangle]
pub unsafe extern "C" fn smoe_bytes_free(bytes: Bytes) {
    free(ptr::slice_from_raw_parts_mut(bytes.data, bytes.len));
}

#[no_mangle]
pub unsafe extern "C" fn smoe_ids_free(ids: Ids) {
    free(ptr::slice_from_raw_parts_mut(ids.data, ids.len));
}

#[no_mangle]
pub unsafe extern "C" fn smoe_offsets_free(offsets: Offsets) {
    free(ptr::slice_from_raw_parts_mut(offsets.data, offsets.len));
}

/// Panics on purpose, so that a test can see that the panic stays inside.
#[no_mangle]
pub unsafe extern "C" fn smoe_test_panic(error: *mut Bytes) -> i32 {
    guard(error, || panic!("on {}", "purpose"))
}
