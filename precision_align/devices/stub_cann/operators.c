/* The part of the stub CANN that receives operators: tensor descriptions, attributes, the compile-and-run call, and
 * collectives among one rank. Python serves the operators through a function that it sets.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, NO_MEMORY = 207001, UNSUPPORTED = 500002, HCCL_UNSUPPORTED = 5, DIMENSIONS = 16 };
typedef void *Handle;

/* Python reads these three by the same layout (operators.py). */
typedef struct {
    int32_t dtype, num_dimensions, format, placement;
    int64_t shape[DIMENSIONS];
    int32_t storage_format; /* that of the buffer; "format" is the logical one */
} Description;
typedef struct {
    void *address;
    size_t size;
} Buffer;
typedef struct {
    size_t length;
    char text[8192]; /* name=value;name=[a,b];... */
} Attributes;

API Description *aclCreateTensorDesc(int dtype, int num_dimensions, const int64_t *shape, int format) {
    Description *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->dtype = dtype;
    made->format = made->storage_format = format;
    made->num_dimensions = num_dimensions < DIMENSIONS ? num_dimensions : DIMENSIONS;
    for (int i = 0; i < made->num_dimensions; i++) made->shape[i] = shape[i];
    return made;
}
API void aclDestroyTensorDesc(Description *description) { free(description); }
API void aclSetTensorDescName(Description *description, const char *name) {}
API int aclSetTensorFormat(Description *description, int format) {
    description->storage_format = format;
    return OK;
}
API int aclSetTensorPlaceMent(Description *description, int placement) {
    description->placement = placement;
    return OK;
}
API int aclSetTensorShape(Description *description, int num_dimensions, const int64_t *shape) { return OK; }
API int aclGetTensorDescType(Description *description) { return description->dtype; }
API int aclGetTensorDescFormat(Description *description) { return description->format; }
API size_t aclGetTensorDescNumDims(Description *description) { return description->num_dimensions; }
API int aclGetTensorDescDimV2(Description *description, size_t place, int64_t *size) {
    *size = description->shape[place];
    return OK;
}
API Buffer *aclCreateDataBuffer(void *address, size_t size) {
    Buffer *made = malloc(sizeof *made);
    if (made) *made = (Buffer){address, size};
    return made;
}
API int aclDestroyDataBuffer(Buffer *buffer) { free(buffer); return OK; }

API Attributes *aclopCreateAttr(void) { return calloc(1, sizeof(Attributes)); }
API void aclopDestroyAttr(Attributes *attributes) { free(attributes); }

/* An attribute that does not fit is left out whole: the text stays readable. */
#define APPEND(attributes, ...)                                                                     \
    do {                                                                                            \
        size_t room = sizeof (attributes)->text - (attributes)->length;                             \
        int length = snprintf((attributes)->text + (attributes)->length, room, __VA_ARGS__);        \
        if (length > 0 && (size_t)length < room) (attributes)->length += length;                    \
        (attributes)->text[(attributes)->length] = 0;                                               \
    } while (0)

API int aclopSetAttrBool(Attributes *to, const char *name, uint8_t value) {
    APPEND(to, "%s=%s;", name, value ? "true" : "false");
    return OK;
}
API int aclopSetAttrInt(Attributes *to, const char *name, int64_t value) {
    APPEND(to, "%s=%lld;", name, (long long)value);
    return OK;
}
API int aclopSetAttrDataType(Attributes *to, const char *name, int value) {
    APPEND(to, "%s=%d;", name, value);
    return OK;
}
API int aclopSetAttrFloat(Attributes *to, const char *name, float value) {
    APPEND(to, "%s=%.9g;", name, value);
    return OK;
}
API int aclopSetAttrString(Attributes *to, const char *name, const char *value) {
    APPEND(to, "%s=\"%s\";", name, value);
    return OK;
}
#define LIST(name_of_call, type, format)                                                            \
    API int name_of_call(Attributes *to, const char *name, int count, const type *values) {         \
        char text[1024];                                                                            \
        size_t length = 0;                                                                          \
        text[0] = 0;                                                                                \
        for (int i = 0; i < count && length < sizeof text - 32; i++)                                \
            length += snprintf(text + length, sizeof text - length, i ? "," format : format, values[i]); \
        APPEND(to, "%s=[%s];", name, text);                                                         \
        return OK;                                                                                  \
    }
LIST(aclopSetAttrListBool, uint8_t, "%d")
LIST(aclopSetAttrListInt, int64_t, "%ld")
LIST(aclopSetAttrListFloat, float, "%.9g")
API int aclopSetAttrListListInt(Attributes *to, const char *name, int count, const int *lengths, Handle values) {
    return OK;
}

int aclrtSynchronizeDevice(void); /* runtime.c: what is queued comes first */

typedef int (*Operators)(const char *name, int num_inputs, Description **inputs, Buffer **input_buffers,
                         int num_outputs, Description **outputs, Buffer **output_buffers, const char *attributes);
static Operators serve;
API void stub_set_operators(Operators function) { serve = function; }

API int aclopCompileAndExecute(const char *name, int num_inputs, Description **inputs, Buffer **input_buffers,
                               int num_outputs, Description **outputs, Buffer **output_buffers, Attributes *attributes,
                               int engine, int compilation, const char *path, Handle stream) {
    if (!serve) return UNSUPPORTED;
    aclrtSynchronizeDevice();
    const char *text = attributes ? attributes->text : "";
    return serve(name, num_inputs, inputs, input_buffers, num_outputs, outputs, output_buffers, text);
}
API int aclopCompileAndExecuteV2(const char *name, int num_inputs, Description **inputs, Buffer **input_buffers,
                                 int num_outputs, Description **outputs, Buffer **output_buffers,
                                 Attributes *attributes, int engine, int compilation, const char *path, Handle stream) {
    return aclopCompileAndExecute(name, num_inputs, inputs, input_buffers, num_outputs, outputs, output_buffers,
                                  attributes, engine, compilation, path, stream);
}

/* ---- collectives among one rank --------------------------------------------------------------------------------- */

static const size_t WIDTHS[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2}; /* of HcclDataType, in its order */

API int HcclGetRootInfo(char *information) { memset(information, 7, 4108); return OK; }
static int join(uint32_t num_ranks, Handle *communicator) {
    static char only;
    *communicator = &only;
    return num_ranks == 1 ? OK : HCCL_UNSUPPORTED;
}
API int HcclCommInitRootInfo(uint32_t num_ranks, const void *information, uint32_t rank, Handle *communicator) {
    return join(num_ranks, communicator);
}
API int HcclCommInitRootInfoConfig(uint32_t num_ranks, const void *information, uint32_t rank, const void *options,
                                   Handle *communicator) {
    return join(num_ranks, communicator);
}
API int HcclGetCommName(Handle communicator, char *name) { strcpy(name, "stub"); return OK; }
API int HcclGetCommAsyncError(Handle communicator, int *error) { *error = OK; return OK; }
API uint32_t HcclGetCommConfigCapability(void) { return 0; }
static int pass_on(const void *source, void *target, uint64_t count, int dtype) {
    if (dtype < 0 || (size_t)dtype >= sizeof WIDTHS / sizeof *WIDTHS) return HCCL_UNSUPPORTED;
    aclrtSynchronizeDevice();
    memmove(target, source, count * WIDTHS[dtype]);
    return OK;
}
API int HcclAllReduce(void *source, void *target, uint64_t count, int dtype, int operation, Handle communicator,
                      Handle stream) {
    return pass_on(source, target, count, dtype);
}
API int HcclReduceScatter(void *source, void *target, uint64_t count, int dtype, int operation, Handle communicator,
                          Handle stream) {
    return pass_on(source, target, count, dtype);
}
API int HcclAllGather(void *source, void *target, uint64_t count, int dtype, Handle communicator, Handle stream) {
    return pass_on(source, target, count, dtype);
}
