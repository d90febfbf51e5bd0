# The same targets as ./build.sh, and install. `make install PREFIX=/usr/local DESTDIR=`
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^.define DT_VERSION "\(.*\)"/\1/p' dtrain.h)

all: build

build run test bench doctor lines clean help:
	./build.sh $@

build/dtrain.pc: dtrain.h Makefile
	mkdir -p build
	printf '%s\n' 'prefix=$(PREFIX)' 'includedir=$${prefix}/include' '' 'Name: dtrain' \
	    'Description: trains a small transformer on one core or on many ranks, with the same bits' \
	    'Version: $(VERSION)' 'Cflags: -I$${includedir}' 'Libs: -lm -lpthread' > $@

install:
	$(MAKE) -B build/dtrain.pc
	install -d '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(PREFIX)/share/pkgconfig'
	install -m 644 dtrain.h '$(DESTDIR)$(PREFIX)/include/dtrain.h'
	install -m 644 build/dtrain.pc '$(DESTDIR)$(PREFIX)/share/pkgconfig/dtrain.pc'

uninstall:
	rm -f '$(DESTDIR)$(PREFIX)/include/dtrain.h' '$(DESTDIR)$(PREFIX)/share/pkgconfig/dtrain.pc'

.PHONY: all build run test bench doctor lines clean help install uninstall
