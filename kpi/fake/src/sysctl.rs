//! The tree of sysctls, and who reads and writes it.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sys_bindings as sys;
use sys_bindings::{kpi_sysctl_kind as kind, kpi_sysctl_root as root};

use crate::{check, memory, string, sync, trace};

type Handler = unsafe extern "C" fn(
    *mut sys::sysctl_oid,
    *mut c_void,
    sys::intmax_t,
    *mut sys::sysctl_req,
) -> c_int;

/// All objects by their full names.
static OBJECTS: Mutex<BTreeMap<String, Object>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy)]
enum Object {
    Node,
    Leaf { kind: kind::Type, is_writable: bool, handler: Handler, argument: Argument },
}

#[derive(Clone, Copy)]
struct Argument(*mut c_void);

// SAFETY: the kernel calls handlers from every thread.
unsafe impl Send for Argument {}

/// What a context created, in order.
#[derive(Default)]
struct Context(Vec<*mut Oid>);

/// An object as `kpi` knows it: its name.
struct Oid(String);

/// A read or write.
#[derive(Default)]
struct Request {
    shown: Vec<u8>,
    change: Option<Vec<u8>>,
}

fn objects() -> MutexGuard<'static, BTreeMap<String, Object>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names of everything below `top`, and `top`.
pub fn names(top: &str) -> Vec<String> {
    let below = format!("{top}.");
    let is_in = |name: &&String| *name == top || name.starts_with(&below);
    objects().keys().filter(is_in).cloned().collect()
}

/// What a text shows.
///
/// # Errors
///
/// The number of the error.
pub fn read_text(name: &str) -> Result<String, c_int> {
    let bytes = request(name, kind::KPI_SYSCTL_TEXT, None)?;
    Ok(String::from_utf8(bytes).expect("a text"))
}

/// What a number shows.
///
/// # Errors
///
/// The number of the error.
pub fn read_number(name: &str) -> Result<u64, c_int> {
    let bytes = request(name, kind::KPI_SYSCTL_NUMBER, None)?;
    Ok(u64::from_ne_bytes(bytes.try_into().expect("a number")))
}

/// Writes a text.
///
/// # Errors
///
/// The number of the error.
pub fn write_text(name: &str, text: &str) -> Result<(), c_int> {
    request(name, kind::KPI_SYSCTL_TEXT, Some(text.as_bytes().to_vec())).map(|_| ())
}

/// Writes a number.
///
/// # Errors
///
/// The number of the error.
pub fn write_number(name: &str, number: u64) -> Result<(), c_int> {
    let change = Some(number.to_ne_bytes().to_vec());
    request(name, kind::KPI_SYSCTL_NUMBER, change).map(|_| ())
}

fn request(name: &str, wanted: kind::Type, change: Option<Vec<u8>>) -> Result<Vec<u8>, c_int> {
    let object = objects().get(name).copied().ok_or(sys::ENOENT.cast_signed())?;
    let Object::Leaf { kind, is_writable, handler, argument } = object else {
        return Err(sys::EISDIR.cast_signed());
    };
    check!(kind == wanted, "{name} has another type");
    if change.is_some() && !is_writable {
        return Err(sys::EPERM.cast_signed());
    }
    let mut request = Request { shown: Vec::new(), change };
    let pointer = (&raw mut request).cast();
    // SAFETY: the argument is that of the leaf, which tests read while it is there.
    match sync::call(|| unsafe { handler(null_mut(), argument.0, 0, pointer) }) {
        0 => Ok(request.shown),
        error => Err(error),
    }
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_sysctl_ctx_create() -> *mut sys::sysctl_ctx_list {
    if memory::is_exhausted() {
        return null_mut();
    }
    let _inside = memory::inside();
    Box::into_raw(Box::<Context>::default()).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sysctl_ctx_free(context: *mut sys::sysctl_ctx_list) {
    sync::assert_may_sleep("sysctl_ctx_free");
    let _inside = memory::inside();
    trace::note("sysctl_ctx_free");
    // SAFETY: from `rust_helper_sysctl_ctx_create`, and not used any more.
    let Context(oids) = *unsafe { Box::from_raw(context.cast::<Context>()) };
    let mut objects = objects();
    for oid in oids.into_iter().rev() {
        // SAFETY: from the box of `add`, and not used any more.
        let Oid(name) = *unsafe { Box::from_raw(oid) };
        let below = format!("{name}.");
        let next = objects.range(below.clone()..).next();
        let has_child = next.is_some_and(|(other, _)| other.starts_with(&below));
        check!(!has_child, "{name} goes before what hangs on it");
        objects.remove(&name);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sysctl_add_root(
    context: *mut sys::sysctl_ctx_list,
    place: root::Type,
    name: *const c_char,
    _description: *const c_char,
) -> *mut sys::sysctl_oid {
    let _inside = memory::inside();
    let top = match place {
        root::KPI_SYSCTL_HW => "hw",
        root::KPI_SYSCTL_NET_LINK => "net.link",
        other => crate::panic(format_args!("there is no root {other}")),
    };
    // SAFETY: as kpi/c says.
    unsafe { add(context, &format!("{top}.{}", string(name)), Object::Node) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sysctl_add_node(
    context: *mut sys::sysctl_ctx_list,
    parent: *mut sys::sysctl_oid,
    name: *const c_char,
    _description: *const c_char,
) -> *mut sys::sysctl_oid {
    let _inside = memory::inside();
    // SAFETY: as kpi/c says.
    unsafe { add(context, &below(parent, name), Object::Node) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sysctl_add_leaf(
    context: *mut sys::sysctl_ctx_list,
    parent: *mut sys::sysctl_oid,
    name: *const c_char,
    _description: *const c_char,
    kind: kind::Type,
    is_writable: c_int,
    handler: Option<Handler>,
    argument: *mut c_void,
) -> *mut sys::sysctl_oid {
    let _inside = memory::inside();
    let leaf = Object::Leaf {
        kind,
        is_writable: is_writable != 0,
        handler: handler.expect("a function"),
        argument: Argument(argument),
    };
    // SAFETY: as kpi/c says.
    unsafe { add(context, &below(parent, name), leaf) }
}

unsafe fn below(parent: *mut sys::sysctl_oid, name: *const c_char) -> String {
    // SAFETY: an object that was added and is there, and a name.
    unsafe { format!("{}.{}", (*parent.cast::<Oid>()).0, string(name)) }
}

unsafe fn add(
    context: *mut sys::sysctl_ctx_list,
    name: &str,
    object: Object,
) -> *mut sys::sysctl_oid {
    sync::assert_may_sleep("sysctl_add_oid");
    if memory::is_exhausted() || objects().contains_key(name) {
        return null_mut();
    }
    objects().insert(name.to_owned(), object);
    let oid = Box::into_raw(Box::new(Oid(name.to_owned())));
    // SAFETY: a context that is not freed, which its owner uses in one thread at a time.
    unsafe { (*context.cast::<Context>()).0.push(oid) };
    oid.cast()
}

unsafe fn request_of<'a>(request: *mut sys::sysctl_req) -> &'a mut Request {
    // SAFETY: `request` above has made it, and waits for the handler.
    unsafe { &mut *request.cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sysctl_is_change(request: *mut sys::sysctl_req) -> bool {
    // SAFETY: as kpi/c says, here and below.
    unsafe { request_of(request) }.change.is_some()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sysctl_show_number(
    request: *mut sys::sysctl_req,
    number: u64,
) -> c_int {
    let _inside = memory::inside();
    // SAFETY: see above.
    unsafe { request_of(request) }.shown.extend(number.to_ne_bytes());
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sysctl_read_number(
    request: *mut sys::sysctl_req,
    number: *mut u64,
) -> c_int {
    // SAFETY: see above; a place for a number.
    let (request, number) = unsafe { (request_of(request), &mut *number) };
    let change = request.change.take().expect("a change");
    match change.try_into() {
        Ok(bytes) => {
            *number = u64::from_ne_bytes(bytes);
            0
        }
        Err(_) => sys::EINVAL.cast_signed(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sysctl_read_text(
    request: *mut sys::sysctl_req,
    text: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: see above; the text has room for that many bytes.
    let (request, text) =
        unsafe { (request_of(request), std::slice::from_raw_parts_mut(text.cast::<u8>(), size)) };
    let change = request.change.take().expect("a change");
    if change.len() >= size {
        return sys::EINVAL.cast_signed();
    }
    text[..change.len()].copy_from_slice(&change);
    text[change.len()] = 0;
    0
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_sysctl_text_begin(request: *mut sys::sysctl_req) -> *mut sys::sbuf {
    if memory::is_exhausted() {
        return null_mut();
    }
    let _inside = memory::inside();
    Box::into_raw(Box::new(request)).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sysctl_text_append(
    sbuf: *mut sys::sbuf,
    text: *const c_char,
    length: usize,
) -> c_int {
    // SAFETY: begun above and not ended; the text has that length.
    let (request, text) = unsafe {
        let request = *sbuf.cast::<*mut sys::sysctl_req>();
        (request_of(request), std::slice::from_raw_parts(text.cast::<u8>(), length))
    };
    let _inside = memory::inside();
    request.shown.extend(text);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sysctl_text_end(sbuf: *mut sys::sbuf) -> c_int {
    // SAFETY: begun above and not ended.
    drop(unsafe { Box::from_raw(sbuf.cast::<*mut sys::sysctl_req>()) });
    0
}
