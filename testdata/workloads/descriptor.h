/* Passes descriptors over a socket. Needs _GNU_SOURCE. */
#ifndef GPUSLICE_DESCRIPTOR_H
#define GPUSLICE_DESCRIPTOR_H

#include <string.h>
#include <sys/socket.h>

union descriptor_control { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; };

static inline void send_descriptor(int socket, int fd)
{
	union descriptor_control control = { 0 };
	struct iovec data = { "x", 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };

	control.header = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	sendmsg(socket, &message, 0);
}

/* -1: the other end is closed. */
static inline int receive_descriptor(int socket)
{
	union descriptor_control control;
	char byte;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	int fd = -1;

	if (recvmsg(socket, &message, 0) == 1 && message.msg_controllen)
		memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

#endif
