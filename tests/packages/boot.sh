#!/bin/bash
# Boots systemd on a copy of a root file system: boot.sh ROOT FOLDER NAME ADDRESS. FOLDER, a tmpfs, gets what the machine writes;
# FOLDER/shared is /shared there. It ends with its process. Started by: unshare --fork --pid --kill-child --mount --uts
# --ipc --net --cgroup.
set -eu
root=$1 folder=$2 name=$3 address=$4
mount --make-rprivate /
hostname "$name"
ip link set lo up
ip link add br0 type bridge  # Slurm resolves no address where there is only lo
ip address add "$address/24" dev br0
ip link set br0 up
mount -t tmpfs tmpfs "$folder/layer"
mkdir "$folder/layer/upper" "$folder/layer/work" "$folder/layer/root"
new=$folder/layer/root
mount -t overlay overlay -o "lowerdir=$root,upperdir=$folder/layer/upper,workdir=$folder/layer/work" "$new"
mount -t proc proc "$new/proc"
mount -t sysfs sysfs "$new/sys"
mount -t cgroup2 cgroup2 "$new/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$new/dev"
for device in null zero full random urandom tty kmsg; do
  touch "$new/dev/$device"
  mount --bind "/dev/$device" "$new/dev/$device"
done
mkdir "$new/dev/shm" "$new/dev/pts" "$new/shared" "$new/.old"
mount -t tmpfs tmpfs "$new/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$new/dev/pts"
ln -s pts/ptmx "$new/dev/ptmx"
mount -t tmpfs -o mode=755 tmpfs "$new/run"
mount --bind "$folder/shared" "$new/shared"
rm -f "$new/usr/sbin/policy-rc.d"
echo "$name" > "$new/etc/hostname"
printf '127.0.0.1 localhost\n198.18.0.1 head1\n198.18.0.2 n1\n198.18.0.3 n2\n' > "$new/etc/hosts"
# These would change the kernel of the host.
for unit in systemd-sysctl systemd-modules-load systemd-remount-fs; do
  ln -sf /dev/null "$new/etc/systemd/system/$unit.service"
done
: > "$new/etc/machine-id"
cd "$new"
pivot_root . .old
umount -l /.old
mount --make-rshared /  # as on a machine: without it systemd gives a service of a user no credentials
exec env -i container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=multi-user.target
