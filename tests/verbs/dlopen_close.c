/* A program that is linked to neither library, but opens both at run time, and closes them. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include <infiniband/verbs.h>

#include "checklist.h"

/* Opens the device, and closes it. */
static void use(void *verbs)
{
	struct ibv_device **(*list)(int *) = NULL;
	struct ibv_context *(*open)(struct ibv_device *) = NULL;
	int (*close)(struct ibv_context *) = NULL;
	struct ibv_context *context = NULL;
	struct ibv_device **devices;
	int count = 0;

	*(void **)&list = dlsym(verbs, "ibv_get_device_list");
	*(void **)&open = dlvsym(verbs, "ibv_open_device", "IBVERBS_1.1");
	*(void **)&close = dlvsym(verbs, "ibv_close_device", "IBVERBS_1.1");
	check(list && open && close, "functions of libibverbs");
	if (!list || !open || !close)
		return;
	devices = list(&count);
	check(count == 1, "one device");
	if (count == 1)
		context = open(devices[0]);
	check(context && close(context) == 0, "open and close the device");
}

int main(void)
{
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	void *cm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);

	NEED(verbs && cm);
	check(verbs == cm, "one object has both names");
	check(dlvsym(cm, "rdma_create_id", "RDMACM_1.0") != NULL, "a function of librdmacm");
	use(verbs);
	check(dlclose(verbs) == 0 && dlclose(cm) == 0, "close both");
	verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	NEED(verbs);
	use(verbs);
	check(dlclose(verbs) == 0, "close again");
	return checklist_end();
}
