//! The tree of sysctls, and who reads and writes it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sys_bindings as sys;
use sys_bindings::{kpi_sysctl_kind as kind, kpi_sysctl_root as root};

use crate::{check, memory, sync, trace};

type Handler = unsafe extern "C" fn(
    *mut sys::sysctl_oid,
    *mut c_void,
    sys::intmax_t,
    *mut sys::sysctl_req,
) -> c_int;

static TREE: Mutex<Tree> = Mutex::new(Tree { objects: Vec::new(), vacant: Vec::new() });

/// All objects, by their numbers.
struct Tree {
    objects: Vec<Object>,
    /// Numbers to be given again.
    vacant: Vec<usize>,
}

struct Object {
    parent: usize,
    what: What,
    /// Names and numbers, the eldest first.
    children: Vec<(Box<CStr>, usize)>,
}

#[derive(Clone, Copy)]
enum What {
    Node,
    Leaf { kind: kind::Type, is_writable: bool, handler: Handler, argument: Argument },
}

#[derive(Clone, Copy)]
struct Argument(*mut c_void);

// SAFETY: the kernel calls handlers from every thread.
unsafe impl Send for Argument {}

/// The numbers of what a context created, in order.
#[derive(Default)]
struct Context(Vec<usize>);

/// A read or write.
#[derive(Default)]
struct Request {
    shown: Vec<u8>,
    change: Option<Vec<u8>>,
}

/// What is always there. Its place is its number.
const ROOTS: [&str; 2] = ["hw", "net.link"];
const HW: usize = 0;
const NET_LINK: usize = 1;

impl Tree {
    fn make_roots(&mut self) {
        if self.objects.is_empty() {
            self.objects.extend((0..ROOTS.len()).map(|number| Object::new(number, What::Node)));
        }
    }

    /// The number of an object, by its full name.
    fn find(&self, name: &str) -> Option<usize> {
        let (root, below) = ROOTS.iter().enumerate().find_map(|(number, root)| {
            Some((number, name.strip_prefix(root)?.strip_prefix('.')?))
        })?;
        below.split('.').try_fold(root, |parent, name| {
            self.objects[parent].child(&CString::new(name).expect("a name"))
        })
    }

    fn add(&mut self, parent: usize, name: &CStr, what: What) -> Option<usize> {
        if self.objects[parent].child(name).is_some() {
            return None;
        }
        let object = Object::new(parent, what);
        let number = match self.vacant.pop() {
            Some(number) => {
                self.objects[number] = object;
                number
            }
            None => {
                self.objects.push(object);
                self.objects.len() - 1
            }
        };
        self.objects[parent].children.push((name.into(), number));
        Some(number)
    }

    fn remove(&mut self, number: usize) {
        let Object { parent, ref children, .. } = self.objects[number];
        let is_leaf = children.is_empty();
        let siblings = &mut self.objects[parent].children;
        // It is among the youngest.
        let place = siblings.iter().rposition(|(_, other)| *other == number).expect("it is there");
        let (name, _) = siblings.remove(place);
        check!(is_leaf, "{name:?} goes before what hangs on it");
        self.vacant.push(number);
    }

    /// Tells the full names of an object and everything below it.
    fn list(&self, number: usize, name: String, names: &mut Vec<String>) {
        for (child, number) in &self.objects[number].children {
            self.list(*number, format!("{name}.{}", child.to_string_lossy()), names);
        }
        names.push(name);
    }
}

impl Object {
    const fn new(parent: usize, what: What) -> Self {
        Self { parent, what, children: Vec::new() }
    }

    fn child(&self, name: &CStr) -> Option<usize> {
        // There are hundreds. Their lengths tell most of them apart, which Miri is quicker with.
        let bytes = name.count_bytes();
        for (other, number) in &self.children {
            if other.count_bytes() == bytes && **other == *name {
                return Some(*number);
            }
        }
        None
    }
}

fn tree() -> MutexGuard<'static, Tree> {
    let mut tree = TREE.lock().unwrap_or_else(PoisonError::into_inner);
    tree.make_roots();
    tree
}

/// The names of everything below `top`, and `top`, if it is there.
pub fn names(top: &str) -> Vec<String> {
    let tree = tree();
    let mut names = Vec::new();
    if let Some(number) = tree.find(top) {
        tree.list(number, top.to_owned(), &mut names);
    }
    names
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
    let what = {
        let tree = tree();
        let number = tree.find(name).ok_or(sys::ENOENT.cast_signed())?;
        tree.objects[number].what
    };
    let What::Leaf { kind, is_writable, handler, argument } = what else {
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
    let Context(numbers) = *unsafe { Box::from_raw(context.cast::<Context>()) };
    let mut tree = tree();
    for number in numbers.into_iter().rev() {
        tree.remove(number);
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
    let root = match place {
        root::KPI_SYSCTL_HW => HW,
        root::KPI_SYSCTL_NET_LINK => NET_LINK,
        other => crate::panic(format_args!("there is no root {other}")),
    };
    // SAFETY: as kpi/c says.
    unsafe { add(context, root, name, What::Node) }
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
    unsafe { add(context, number_of(parent), name, What::Node) }
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
    let leaf = What::Leaf {
        kind,
        is_writable: is_writable != 0,
        handler: handler.expect("a function"),
        argument: Argument(argument),
    };
    // SAFETY: as kpi/c says.
    unsafe { add(context, number_of(parent), name, leaf) }
}

/// An object as `kpi` knows it is its number: no pointer to anything, and none that is NULL.
fn oid_of(number: usize) -> *mut sys::sysctl_oid {
    without_provenance_mut(number + 1)
}

fn number_of(oid: *mut sys::sysctl_oid) -> usize {
    oid.addr() - 1
}

unsafe fn add(
    context: *mut sys::sysctl_ctx_list,
    parent: usize,
    name: *const c_char,
    what: What,
) -> *mut sys::sysctl_oid {
    sync::assert_may_sleep("sysctl_add_oid");
    if memory::is_exhausted() {
        return null_mut();
    }
    // SAFETY: a name.
    let Some(number) = tree().add(parent, unsafe { CStr::from_ptr(name) }, what) else {
        return null_mut();
    };
    // SAFETY: a context that is not freed, which its owner uses in one thread at a time.
    unsafe { (*context.cast::<Context>()).0.push(number) };
    oid_of(number)
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
