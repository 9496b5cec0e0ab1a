/* Work requests, with workarounds for the libibverbs provider of siw. */
#include <stdlib.h>
#include <string.h>

#include "endpoint.h"
#include "common.h"

static struct ibv_sge entry_of(const struct memory *memory, size_t offset, size_t length)
{
	struct ibv_sge entry = {
		.addr = (uintptr_t)memory->bytes + offset,
		.length = (uint32_t)length,
		.lkey = memory->mr->lkey,
	};

	return entry;
}

void post_receive(struct connection *connection, uint64_t wr_id, const struct memory *memory,
		  size_t offset, size_t length)
{
	/* The provider of siw refuses a receive without an SGE, but accepts one of length 0. */
	struct ibv_sge entry = entry_of(memory, offset, length);
	struct ibv_recv_wr request = { .wr_id = wr_id, .sg_list = &entry, .num_sge = 1 };
	struct ibv_recv_wr *refused;
	int error = ibv_post_recv(connection->id->qp, &request, &refused);

	if (error)
		give_up("a receive was refused: %s", strerror(abs(error)));
}

static void post(struct connection *connection, struct ibv_send_wr *request)
{
	struct ibv_send_wr *refused;
	int error;

	/* All are signaled: siw transmits the pages of unsignaled requests without a copy, possibly
	 * after the completion of later requests, when the memory is reused. */
	request->send_flags |= IBV_SEND_SIGNALED;
	error = ibv_post_send(connection->id->qp, request, &refused);
	if (error)
		give_up("a request was refused: %s", strerror(abs(error)));
}

void post_send(struct connection *connection, uint64_t wr_id, const struct memory *memory,
	       size_t offset, size_t length, bool solicited, uint32_t invalidate)
{
	struct ibv_sge entry = entry_of(memory, offset, length);
	struct ibv_send_wr request = {
		.wr_id = wr_id,
		.sg_list = &entry,
		.num_sge = length > 0,
		.opcode = invalidate ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND,
		.send_flags = solicited ? IBV_SEND_SOLICITED : 0,
	};

	if (invalidate) {
		request.invalidate_rkey = invalidate;
		/* The provider of siw (rdma-core 44 to 50) takes the STag from the field of RDMA
		 * Writes instead. */
		request.wr.rdma.rkey = invalidate;
	}
	post(connection, &request);
}

static void post_tagged(struct connection *connection, enum ibv_wr_opcode opcode, uint64_t wr_id,
			const struct memory *memory, size_t offset, size_t length, uint32_t stag,
			uint64_t remote)
{
	struct ibv_sge entry = entry_of(memory, offset, length);
	struct ibv_send_wr request = {
		.wr_id = wr_id,
		.sg_list = &entry,
		.num_sge = 1,
		.opcode = opcode,
		.wr.rdma = { .remote_addr = remote, .rkey = stag },
	};

	post(connection, &request);
}

void post_write(struct connection *connection, uint64_t wr_id, const struct memory *memory,
		size_t offset, size_t length, uint32_t stag, uint64_t remote)
{
	post_tagged(connection, IBV_WR_RDMA_WRITE, wr_id, memory, offset, length, stag, remote);
}

void post_read(struct connection *connection, uint64_t wr_id, const struct memory *memory,
	       size_t offset, size_t length, uint32_t stag, uint64_t remote)
{
	post_tagged(connection, IBV_WR_RDMA_READ, wr_id, memory, offset, length, stag, remote);
}
