/* Lines of the ledger, made, hashed, chained and kept to be written, in one call: what ledger/linking.py does, which says
 * what each part means. Its objects are for one thread at a time, as the ledger's lock has it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <time.h>

#include "sha256.h"

enum { MAX_LINE = 48 * 1024, MAX_HOLES = 24, MAX_PAIRS = 20, MAX_KEY = 64, MAX_TEXT = 256, NODES = 63, HEX = 64 };
enum { BOOT = -1, MONO = -2, PREV = -3, SEQ = -4, TS = -5, LITERAL = -6 };

static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";

typedef struct {
    int hole;          /* of the values, or one of the above */
    Py_ssize_t at, size; /* of a literal, in the template's text */
} Part;

typedef struct {
    PyObject_HEAD
    char *text;
    Part *parts;
    Py_ssize_t behind, count; /* where the parts behind "hash" begin, and how many there are */
    PyObject *names;          /* of the holes: tuple of bytes, each as "name": */
    PyObject *general;        /* (hole, value) -> bytes, for what is not spelt here */
} Template;

typedef struct {
    PyObject_HEAD
    long long seq, written_seq;
    char prev[HEX], written_prev[HEX];
    unsigned char nodes[NODES][32];
    int depth;
    char *held;
    size_t size, room;
    unsigned char *scratch; /* of one line */
    int busy;
    time_t second;
    char clock[24]; /* "2026-11-30T10:00:00. with its quote, of `second` */
} Chain;

/* --- spelling --- */

typedef struct {
    unsigned char *at, *end;
} Out;

static int put(Out *out, const void *bytes, size_t size)
{
    if ((size_t)(out->end - out->at) < size)
        return -1;
    memcpy(out->at, bytes, size);
    out->at += size;
    return 0;
}

static int put_number(Out *out, unsigned long long number, unsigned base)
{
    char text[24], *start = text + sizeof text;
    do
        *--start = digits[number % base];
    while (number /= base);
    return put(out, start, (size_t)(text + sizeof text - start));
}

static int put_field(Out *out, const char *name, unsigned long long number)
{
    return put(out, name, strlen(name)) || put_number(out, number, 10) || put(out, ",", 1);
}

static void hex_of(const unsigned char digest[32], char text[HEX])
{
    for (int i = 0; i < 32; i++) {
        text[2 * i] = digits[digest[i] >> 4];
        text[2 * i + 1] = digits[digest[i] & 15];
    }
}

static int is_plain(PyObject *text, Py_ssize_t most, const char **bytes, Py_ssize_t *size)
{
    if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text) || PyUnicode_GET_LENGTH(text) > most)
        return 0;
    const unsigned char *data = PyUnicode_DATA(text);
    *size = PyUnicode_GET_LENGTH(text);
    for (Py_ssize_t i = 0; i < *size; i++)
        if (data[i] < 0x20 || data[i] > 0x7e || data[i] == '"' || data[i] == '\\')
            return 0;
    *bytes = (const char *)data;
    return 1;
}

typedef struct {
    const char *key, *text;
    Py_ssize_t key_size, text_size;
} Pair;

static int comes_before(const Pair *one, const Pair *other)
{
    Py_ssize_t size = one->key_size < other->key_size ? one->key_size : other->key_size;
    int order = memcmp(one->key, other->key, (size_t)size);
    return order < 0 || (order == 0 && one->key_size < other->key_size);
}

/* A field of short plain texts by name, sorted; NULL without an error where it is of another kind. */
static PyObject *spelt_pairs(PyObject *name, PyObject *dict)
{
    Pair pairs[MAX_PAIRS];
    Py_ssize_t count = 0, place = 0, total = PyBytes_GET_SIZE(name) + 3;
    PyObject *key, *value;
    if (PyDict_GET_SIZE(dict) > MAX_PAIRS)
        return NULL;
    while (PyDict_Next(dict, &place, &key, &value)) {
        Pair pair;
        if (count == MAX_PAIRS || !is_plain(key, MAX_KEY, &pair.key, &pair.key_size) ||
            !is_plain(value, MAX_TEXT, &pair.text, &pair.text_size))
            return NULL;
        Py_ssize_t at = count++;
        for (; at && comes_before(&pair, &pairs[at - 1]); at--)
            pairs[at] = pairs[at - 1];
        pairs[at] = pair;
        total += pair.key_size + pair.text_size + 6;
    }
    PyObject *spelt = PyBytes_FromStringAndSize(NULL, total - (count > 0));
    if (spelt == NULL)
        return NULL;
    Out out = {(unsigned char *)PyBytes_AS_STRING(spelt), (unsigned char *)PyBytes_AS_STRING(spelt) + total - (count > 0)};
    int failed = put(&out, PyBytes_AS_STRING(name), (size_t)PyBytes_GET_SIZE(name)) || put(&out, "{", 1);
    for (Py_ssize_t i = 0; i < count && !failed; i++)
        failed = (i && put(&out, ",", 1)) || put(&out, "\"", 1) || put(&out, pairs[i].key, (size_t)pairs[i].key_size) ||
                 put(&out, "\":\"", 3) || put(&out, pairs[i].text, (size_t)pairs[i].text_size) || put(&out, "\"", 1);
    if (failed || put(&out, "},", 2) || out.at != out.end) {
        Py_DECREF(spelt);
        PyErr_SetString(PyExc_SystemError, "ledger: pairs of another size than was counted");
        return NULL;
    }
    return spelt;
}

typedef struct {
    PyObject *bytes; /* owned; NULL: the number, or nothing at all */
    long long number;
    enum { NOTHING, NUMBER, BYTES, TAG } kind;
} Value;

static int take_number(PyObject *value, long long *number)
{
    int over = 0;
    *number = PyLong_AsLongLongAndOverflow(value, &over);
    if (!over && *number >= 0)
        return 0;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "ledger: a number is outside 0..2**63-1");
    return -1;
}

static int take_value(Template *template, Py_ssize_t hole, PyObject *given, Value *value)
{
    value->bytes = NULL;
    if (given == Py_None) {
        value->kind = NOTHING;
        return 0;
    }
    if (PyLong_CheckExact(given)) {
        value->kind = NUMBER;
        return take_number(given, &value->number);
    }
    value->kind = BYTES;
    if (PyBytes_CheckExact(given)) {
        value->bytes = Py_NewRef(given);
        return 0;
    }
    if (PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) == 1 && PyBytes_CheckExact(PyTuple_GET_ITEM(given, 0))) {
        value->kind = TAG;
        value->bytes = Py_NewRef(PyTuple_GET_ITEM(given, 0));
        return 0;
    }
    PyObject *name = PyTuple_GET_ITEM(template->names, hole);
    /* the bounds above are those of "ids" */
    if (PyDict_CheckExact(given) && PyDict_GET_SIZE(given) && strcmp(PyBytes_AS_STRING(name), "\"ids\":") == 0) {
        value->bytes = spelt_pairs(name, given);
        if (value->bytes != NULL || PyErr_Occurred())
            return value->bytes == NULL ? -1 : 0;
    }
    PyObject *number = PyLong_FromSsize_t(hole);
    if (number == NULL)
        return -1;
    value->bytes = PyObject_CallFunctionObjArgs(template->general, number, given, NULL);
    Py_DECREF(number);
    if (value->bytes != NULL && !PyBytes_CheckExact(value->bytes)) {
        PyErr_SetString(PyExc_TypeError, "ledger: a field was not spelt as bytes");
        Py_CLEAR(value->bytes);
    }
    return value->bytes == NULL ? -1 : 0;
}

/* --- a template --- */

static void Template_dealloc(Template *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyMem_Free(self->text);
    PyMem_Free(self->parts);
    Py_XDECREF(self->names);
    Py_XDECREF(self->general);
    type->tp_free(self);
    Py_DECREF(type);
}

static int Template_traverse(Template *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->names);
    Py_VISIT(self->general);
    return 0;
}

static int Template_clear(Template *self)
{
    Py_CLEAR(self->names);
    Py_CLEAR(self->general);
    return 0;
}

static int is_part(PyObject *given, Py_ssize_t holes)
{
    if (PyBytes_CheckExact(given))
        return PyBytes_GET_SIZE(given) <= MAX_LINE;
    int over = 0;
    long hole = PyLong_CheckExact(given) ? PyLong_AsLongAndOverflow(given, &over) : LITERAL;
    return !over && hole >= TS && hole < holes;
}

static int take_parts(Template *self, PyObject *given, Py_ssize_t holes, Py_ssize_t *used)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
        PyObject *one = PyTuple_GET_ITEM(given, i);
        Part *part = &self->parts[self->count++];
        if (!is_part(one, holes)) {
            PyErr_SetString(PyExc_TypeError, "ledger: not a part of a template");
            return -1;
        }
        if (PyBytes_CheckExact(one)) {
            *part = (Part){LITERAL, *used, PyBytes_GET_SIZE(one)};
            memcpy(self->text + *used, PyBytes_AS_STRING(one), (size_t)part->size);
            *used += part->size;
        } else {
            *part = (Part){(int)PyLong_AsLong(one), 0, 0};
        }
    }
    return 0;
}

static Py_ssize_t literals(PyObject *given)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++)
        if (PyBytes_CheckExact(PyTuple_GET_ITEM(given, i)))
            size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(given, i));
    return size;
}

static PyObject *Template_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *before, *behind, *names, *general;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Template takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!O!O", &PyTuple_Type, &before, &PyTuple_Type, &behind, &PyTuple_Type, &names, &general))
        return NULL;
    Py_ssize_t holes = PyTuple_GET_SIZE(names), count = PyTuple_GET_SIZE(before) + PyTuple_GET_SIZE(behind), used = 0;
    for (Py_ssize_t i = 0; i < holes; i++)
        if (!PyBytes_CheckExact(PyTuple_GET_ITEM(names, i)) || PyBytes_GET_SIZE(PyTuple_GET_ITEM(names, i)) > MAX_LINE) {
            PyErr_SetString(PyExc_TypeError, "ledger: a hole's name is not bytes");
            return NULL;
        }
    if (holes > MAX_HOLES || count > 4 * MAX_HOLES || literals(before) + literals(behind) > 2 * MAX_LINE) {
        PyErr_SetString(PyExc_TypeError, "ledger: a template is too long");
        return NULL;
    }
    Template *self = (Template *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->names = Py_NewRef(names);
    self->general = Py_NewRef(general);
    self->text = PyMem_Malloc((size_t)(literals(before) + literals(behind)) + 1);
    self->parts = PyMem_Calloc((size_t)count + 1, sizeof *self->parts);
    if (self->text == NULL || self->parts == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    if (take_parts(self, before, holes, &used) || (self->behind = self->count, take_parts(self, behind, holes, &used))) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyType_Slot Template_slots[] = {
    {Py_tp_new, Template_new},
    {Py_tp_dealloc, Template_dealloc},
    {Py_tp_traverse, Template_traverse},
    {Py_tp_clear, Template_clear},
    {0, NULL},
};
static PyType_Spec Template_spec = {
    "_credgate_chain.Template", sizeof(Template), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    Template_slots};

/* --- the chain --- */

typedef struct {
    PyTypeObject *chain, *template;
} State;

static int make_room(Chain *self, size_t more)
{
    if (self->room - self->size >= more)
        return 0;
    size_t room = self->room ? self->room : 4096;
    while (room - self->size < more) {
        if (room > PY_SSIZE_T_MAX / 2) {
            PyErr_NoMemory();
            return -1;
        }
        room *= 2;
    }
    char *held = PyMem_Realloc(self->held, room);
    if (held == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->held = held;
    self->room = room;
    return 0;
}

/* Chain and tree go on with the line that stands behind what is held. Nothing here can fail. */
static void go_on(Chain *self, size_t size)
{
    Sha256 sha;
    unsigned char digest[32];
    const char *line = self->held + self->size;
    sha256_begin(&sha);
    sha256_add(&sha, line, size);
    sha256_end(&sha, digest);
    hex_of(digest, self->prev);
    sha256_begin(&sha);
    sha256_add(&sha, "\0", 1);
    sha256_add(&sha, line, size);
    sha256_end(&sha, digest);
    for (unsigned long long left = (unsigned long long)self->seq; left & 1; left >>= 1) {
        sha256_begin(&sha);
        sha256_add(&sha, "\1", 1);
        sha256_add(&sha, self->nodes[--self->depth], 32);
        sha256_add(&sha, digest, 32);
        sha256_end(&sha, digest);
    }
    memcpy(self->nodes[self->depth++], digest, 32);
    self->size += size;
    self->seq++;
}

/* A moment as text of JSON. -1 where it is none of four digits of a year: the general way has it then. */
static int read_clock(Chain *self, char text[32], unsigned long long *mono)
{
    struct timespec now, up;
    if (clock_gettime(CLOCK_REALTIME, &now) || clock_gettime(CLOCK_BOOTTIME, &up) || up.tv_sec < 0)
        return -1;
    if (now.tv_sec != self->second || !self->clock[0]) {
        struct tm parts;
        char date[24];
        if (gmtime_r(&now.tv_sec, &parts) == NULL || parts.tm_year < 0 || parts.tm_year > 9999 - 1900 ||
            strftime(date, sizeof date, "\"%Y-%m-%dT%H:%M:%S.", &parts) != 21)
            return -1;
        memcpy(self->clock, date, 21);
        self->second = now.tv_sec;
    }
    memcpy(text, self->clock, 21);
    long micros = now.tv_nsec / 1000;
    for (int i = 26; i > 20; i--, micros /= 10)
        text[i] = digits[micros % 10];
    memcpy(text + 27, "Z\"", 2);
    *mono = (unsigned long long)up.tv_sec * 1000000000ULL + (unsigned long long)up.tv_nsec;
    return 0;
}

typedef struct {
    const char *boot, *ts;
    size_t boot_size, ts_size;
    unsigned long long mono;
} When;

static int put_value(const Chain *self, const Template *template, int hole, const Value *value, Out *out)
{
    PyObject *name = PyTuple_GET_ITEM(template->names, hole);
    switch (value->kind) {
    case NOTHING:
        return 0;
    case NUMBER:
        return put(out, PyBytes_AS_STRING(name), (size_t)PyBytes_GET_SIZE(name)) ||
               put_number(out, (unsigned long long)value->number, 10) || put(out, ",", 1);
    case BYTES:
        return put(out, PyBytes_AS_STRING(value->bytes), (size_t)PyBytes_GET_SIZE(value->bytes));
    case TAG:
        return put(out, PyBytes_AS_STRING(name), (size_t)PyBytes_GET_SIZE(name)) || put(out, "\"", 1) ||
               put(out, PyBytes_AS_STRING(value->bytes), (size_t)PyBytes_GET_SIZE(value->bytes)) ||
               put_number(out, (unsigned long long)self->seq + 1, 36) || put(out, "\",", 2);
    }
    return -1;
}

static int put_parts(const Chain *self, const Template *template, const Value *values, const When *when, int behind, Out *out)
{
    Py_ssize_t end = behind ? template->count : template->behind;
    int failed = 0;
    for (Py_ssize_t i = behind ? template->behind : 0; i < end && !failed; i++) {
        const Part *part = &template->parts[i];
        switch (part->hole) {
        case LITERAL:
            failed = put(out, template->text + part->at, (size_t)part->size);
            break;
        case BOOT:
            failed = put(out, when->boot, when->boot_size);
            break;
        case MONO:
            failed = put_field(out, "\"mono_ns\":", when->mono);
            break;
        case PREV:
            failed = put(out, "\"prev\":\"", 8) || put(out, self->prev, HEX) || put(out, "\",", 2);
            break;
        case SEQ:
            failed = put_field(out, "\"seq\":", (unsigned long long)self->seq + 1);
            break;
        case TS:
            failed = put(out, "\"ts\":", 5) || put(out, when->ts, when->ts_size) || put(out, ",", 1);
            break;
        default:
            failed = put_value(self, template, part->hole, &values[part->hole], out);
        }
    }
    return failed;
}

/* One line behind what is held, and the chain goes on. */
static int add_line(Chain *self, const Template *template, const Value *values, const When *when)
{
    if (make_room(self, MAX_LINE) < 0)
        return -1;
    unsigned char *line = (unsigned char *)self->held + self->size;
    Out out = {line, line + MAX_LINE}, behind = {self->scratch, self->scratch + MAX_LINE};
    int failed = put_parts(self, template, values, when, 0, &out) || put_parts(self, template, values, when, 1, &behind);
    if (!failed) {
        Sha256 sha;
        unsigned char digest[32];
        char text[HEX];
        sha256_begin(&sha);
        sha256_add(&sha, line, (size_t)(out.at - line));
        sha256_add(&sha, self->scratch, (size_t)(behind.at - self->scratch));
        sha256_end(&sha, digest);
        hex_of(digest, text);
        failed = put(&out, "\"hash\":\"", 8) || put(&out, text, HEX) || put(&out, "\",", 2) ||
                 put(&out, self->scratch, (size_t)(behind.at - self->scratch)) || put(&out, "\n", 1);
    }
    if (failed) {
        PyErr_Format(PyExc_TypeError, "ledger: line has more than %d bytes", MAX_LINE);
        return -1;
    }
    go_on(self, (size_t)(out.at - line));
    return 0;
}

/* The values of a line in the form of `template`; given is a tuple, or makes one of the line's number. */
static int take_values(Chain *self, Template *template, PyObject *given, Value values[MAX_HOLES], Py_ssize_t *count)
{
    PyObject *tuple = Py_NewRef(given);
    if (!PyTuple_CheckExact(given)) {
        PyObject *number = PyLong_FromLongLong(self->seq + 1);
        Py_DECREF(tuple);
        if (number == NULL)
            return -1;
        tuple = PyObject_CallOneArg(given, number);
        Py_DECREF(number);
        if (tuple == NULL)
            return -1;
    }
    int failed = !PyTuple_CheckExact(tuple) || PyTuple_GET_SIZE(tuple) != PyTuple_GET_SIZE(template->names);
    if (failed)
        PyErr_SetString(PyExc_TypeError, "ledger: not a value for each hole");
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(tuple); i++) {
        failed = take_value(template, i, PyTuple_GET_ITEM(tuple, i), &values[i]) < 0;
        if (!failed)
            *count = i + 1;
    }
    Py_DECREF(tuple);
    return failed ? -1 : 0;
}

static int take_when(Chain *self, PyObject *const *args, When *when, char clock[32])
{
    if (!PyBytes_CheckExact(args[2]) || !PyUnicode_CheckExact(args[3])) {
        PyErr_SetString(PyExc_TypeError, "put(template, values, boot, day, ts, mono)");
        return -1;
    }
    when->boot = PyBytes_AS_STRING(args[2]);
    when->boot_size = (size_t)PyBytes_GET_SIZE(args[2]);
    if (args[4] == Py_None) {
        Py_ssize_t size;
        const char *day = PyUnicode_AsUTF8AndSize(args[3], &size);
        if (day == NULL)
            return -1;
        if (size != 10 || read_clock(self, clock, &when->mono) < 0 || memcmp(clock + 1, day, 10) > 0)
            return 1;
        when->ts = clock;
        when->ts_size = 29;
        return 0;
    }
    long long mono;
    if (!PyBytes_CheckExact(args[4]) || !PyLong_CheckExact(args[5])) {
        PyErr_SetString(PyExc_TypeError, "put(template, values, boot, day, ts, mono)");
        return -1;
    }
    if (take_number(args[5], &mono) < 0)
        return -1;
    when->mono = (unsigned long long)mono;
    when->ts = PyBytes_AS_STRING(args[4]);
    when->ts_size = (size_t)PyBytes_GET_SIZE(args[4]);
    return 0;
}

static int begin(Chain *self)
{
    if (self->busy)
        PyErr_SetString(PyExc_RuntimeError, "ledger: a line while another one is being made");
    else
        self->busy = 1;
    return PyErr_Occurred() ? -1 : 0;
}

/* put(template, values, boot, day, ts, mono) -> number of the line; 0: the day is over, and nothing was done. */
static PyObject *Chain_put(Chain *self, PyTypeObject *defining, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    State *state = PyType_GetModuleState(defining);
    Value values[MAX_HOLES];
    Py_ssize_t count = 0;
    When when;
    char clock[32];
    if (state == NULL)
        return NULL;
    if (nargs != 6 || (names != NULL && PyTuple_GET_SIZE(names)) || Py_TYPE(args[0]) != state->template) {
        PyErr_SetString(PyExc_TypeError, "put(template, values, boot, day, ts, mono)");
        return NULL;
    }
    if (begin(self) < 0)
        return NULL;
    int ended = take_when(self, args, &when, clock);
    if (ended == 0)
        ended = take_values(self, (Template *)args[0], args[1], values, &count);
    if (ended == 0)
        ended = add_line(self, (Template *)args[0], values, &when);
    for (Py_ssize_t i = 0; i < count; i++)
        Py_XDECREF(values[i].bytes);
    self->busy = 0;
    return ended < 0 ? NULL : PyLong_FromLongLong(ended ? 0 : self->seq);
}

/* add(line): one that was made elsewhere, of this chain's head. */
static PyObject *Chain_add(Chain *self, PyObject *line)
{
    if (!PyBytes_CheckExact(line) || PyBytes_GET_SIZE(line) > MAX_LINE) {
        PyErr_SetString(PyExc_TypeError, "ledger: not a line");
        return NULL;
    }
    if (begin(self) < 0)
        return NULL;
    int failed = make_room(self, (size_t)PyBytes_GET_SIZE(line));
    if (!failed) {
        memcpy(self->held + self->size, PyBytes_AS_STRING(line), (size_t)PyBytes_GET_SIZE(line));
        go_on(self, (size_t)PyBytes_GET_SIZE(line));
    }
    self->busy = 0;
    return failed ? NULL : PyLong_FromLongLong(self->seq);
}

static PyObject *Chain_take(Chain *self, PyObject *ignored)
{
    (void)ignored;
    if (begin(self) < 0)
        return NULL;
    PyObject *lines = PyBytes_FromStringAndSize(self->held, (Py_ssize_t)self->size);
    self->busy = 0;
    if (lines == NULL)
        return NULL;
    self->size = 0;
    if (self->room > 8 * MAX_LINE) {
        PyMem_Free(self->held);
        self->held = NULL;
        self->room = 0;
    }
    return lines;
}

static PyObject *Chain_wrote(Chain *self, PyObject *ignored)
{
    (void)ignored;
    self->written_seq = self->seq;
    memcpy(self->written_prev, self->prev, HEX);
    Py_RETURN_NONE;
}

static PyObject *Chain_end(Chain *self, void *written)
{
    return Py_BuildValue("(Ls#)", written ? self->written_seq : self->seq, written ? self->written_prev : self->prev,
                         (Py_ssize_t)HEX);
}

static PyObject *Chain_seq(Chain *self, void *ignored)
{
    (void)ignored;
    return PyLong_FromLongLong(self->seq);
}

static PyObject *Chain_nodes(Chain *self, void *ignored)
{
    (void)ignored;
    PyObject *nodes = PyTuple_New(self->depth);
    for (int i = 0; nodes != NULL && i < self->depth; i++) {
        PyObject *node = PyBytes_FromStringAndSize((const char *)self->nodes[i], 32);
        if (node == NULL)
            Py_CLEAR(nodes);
        else
            PyTuple_SET_ITEM(nodes, i, node);
    }
    return nodes;
}

static void Chain_dealloc(Chain *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->held);
    PyMem_Free(self->scratch);
    type->tp_free(self);
    Py_DECREF(type);
}

static int take_nodes(Chain *self, PyObject *nodes)
{
    if (PyTuple_GET_SIZE(nodes) != __builtin_popcountll((unsigned long long)self->seq))
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(nodes); i++) {
        PyObject *node = PyTuple_GET_ITEM(nodes, i);
        if (!PyBytes_CheckExact(node) || PyBytes_GET_SIZE(node) != 32)
            return -1;
        memcpy(self->nodes[self->depth++], PyBytes_AS_STRING(node), 32);
    }
    return 0;
}

/* Chain(seq, sha256, nodes): the end of a ledger that is there, and its tree's complete subtrees. */
static PyObject *Chain_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    long long seq;
    const char *prev;
    Py_ssize_t size;
    PyObject *nodes;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Chain takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "Ls#O!", &seq, &prev, &size, &PyTuple_Type, &nodes))
        return NULL;
    Chain *self = (Chain *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->seq = self->written_seq = seq;
    self->scratch = PyMem_Malloc(MAX_LINE);
    if (self->scratch == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    /* half of what fits: no chain comes near it, and the numbers of lines can't run over */
    if (seq < 0 || seq >= 1LL << 62 || size != HEX || take_nodes(self, nodes) < 0) {
        Py_DECREF(self);
        PyErr_SetString(PyExc_ValueError, "ledger: not the end of a chain");
        return NULL;
    }
    memcpy(self->prev, prev, HEX);
    memcpy(self->written_prev, prev, HEX);
    return (PyObject *)self;
}

static PyMethodDef Chain_methods[] = {
    {"put", (PyCFunction)(void (*)(void))Chain_put, METH_METHOD | METH_FASTCALL | METH_KEYWORDS, NULL},
    {"add", (PyCFunction)Chain_add, METH_O, NULL},
    {"take", (PyCFunction)Chain_take, METH_NOARGS, NULL},
    {"wrote", (PyCFunction)Chain_wrote, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static int of_written = 1;
static PyGetSetDef Chain_getset[] = {
    {"seq", (getter)Chain_seq, NULL, NULL, NULL},
    {"end", (getter)Chain_end, NULL, NULL, NULL},
    {"written", (getter)Chain_end, NULL, NULL, &of_written},
    {"nodes", (getter)Chain_nodes, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot Chain_slots[] = {
    {Py_tp_new, Chain_new},
    {Py_tp_dealloc, Chain_dealloc},
    {Py_tp_methods, Chain_methods},
    {Py_tp_getset, Chain_getset},
    {0, NULL},
};
static PyType_Spec Chain_spec = {"_credgate_chain.Chain", sizeof(Chain), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, Chain_slots};

/* --- the module --- */

/* sha256(data, plain): for tests, and for the look that is taken as the module is loaded. */
static PyObject *digest_of(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer data;
    int plain;
    Sha256 sha;
    unsigned char digest[32];
    if (!PyArg_ParseTuple(args, "y*p", &data, &plain))
        return NULL;
    Sha256Blocks best = sha256_blocks;
    sha256_blocks = plain ? sha256_blocks_plain : best;
    sha256_begin(&sha);
    sha256_add(&sha, data.buf, (size_t)data.len);
    sha256_end(&sha, digest);
    sha256_blocks = best;
    PyBuffer_Release(&data);
    return PyBytes_FromStringAndSize((const char *)digest, 32);
}

static PyMethodDef functions[] = {{"sha256", digest_of, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static int fill(PyObject *module)
{
    State *state = PyModule_GetState(module);
    sha256_blocks = sha256_best();
    state->template = (PyTypeObject *)PyType_FromModuleAndSpec(module, &Template_spec, NULL);
    state->chain = (PyTypeObject *)PyType_FromModuleAndSpec(module, &Chain_spec, NULL);
    if (state->template == NULL || state->chain == NULL)
        return -1;
    return PyModule_AddType(module, state->template) || PyModule_AddType(module, state->chain) ||
                   PyModule_AddStringConstant(module, "STAMP", STAMP)
               ? -1
               : 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->chain);
    Py_VISIT(state->template);
    return 0;
}

static int clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->chain);
    Py_CLEAR(state->template);
    return 0;
}

static struct PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_credgate_chain", NULL, sizeof(State), functions, slots, traverse, clear, NULL};

PyMODINIT_FUNC PyInit__credgate_chain(void) { return PyModuleDef_Init(&definition); }
